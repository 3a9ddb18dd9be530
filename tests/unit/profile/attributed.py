# SPDX-License-Identifier: Apache-2.0
"""A step of two stretches, and functions that make samples and accesses for it."""

from __future__ import annotations

import numpy as np

from sentineld.model.profile import Profile
from sentineld.model.protocol import Event
from sentineld.model.records import (
    OP_ACCESS_DTYPE,
    RECORD_DTYPE,
    SAMPLE_DTYPE,
    Records,
)
from sentineld.profile.steps import Step
from tests.unit.trainer import PAGE

NO_SAMPLES = np.zeros(0, SAMPLE_DTYPE)
NO_OPS = np.zeros(0, OP_ACCESS_DTYPE)


def samples(*rows: tuple[int, int, int]) -> Records:
    """A table of SAMPLE_DTYPE from (page, epoch, flags)."""
    return np.array([(page, epoch, 0, flags, 0) for page, epoch, flags in rows], SAMPLE_DTYPE)


def rows(profile: Profile) -> list[tuple[int, ...]]:
    """The rows of profile.accesses without their last column, page_accesses."""
    return [row[:5] for row in profile.accesses.tolist()]


def ring(*entries: tuple[Event, int, int, int]) -> Records:
    """Records from (event, address, bytes, value), one every 10 ns."""
    made = np.zeros(len(entries), RECORD_DTYPE)
    for at, (event, address, size, value) in enumerate(entries):
        made[at] = (100 + 10 * at, address, size, value, 0, event, 0)
    return made


def two_stretches() -> Step:
    # page       16      17      18      19     20
    # stretch 0  [A A A A A A A A)               epoch 5   A: slot 0, pages 16-17
    #                            [B B B B)       epoch 5   B: slot 1, page 18 and half of 19
    # stretch 1  [C C C C)       [B B B B)       epoch 6   C: slot 2, page 16, after A's death
    # In the records, STEP and BOUNDARY have the epoch in place of an address (see RECORD_DTYPE).
    return Step(
        ring(
            (Event.STEP, 5, 1, 0),
            (Event.BOUNDARY, 5, 0, 0),
            (Event.ALLOC, 16 * PAGE, 2 * PAGE, 0),
            (Event.ALLOC, 18 * PAGE, PAGE + PAGE // 2, 1),
            (Event.FREE, 16 * PAGE, 2 * PAGE, 0),
            (Event.BOUNDARY, 6, 2, 1),
            (Event.ALLOC, 16 * PAGE, PAGE, 2),
            (Event.FREE, 16 * PAGE, PAGE, 2),
            (Event.FREE, 18 * PAGE, PAGE + PAGE // 2, 1),
        ),
        number=1,
        end_ns=200,
        end_epoch=7,
        live={},
    )


def op(time_ns: int, page: int, size: int) -> Records:
    """A read by an operator."""
    return np.array([(time_ns, page * PAGE, size, False, False)], OP_ACCESS_DTYPE)
