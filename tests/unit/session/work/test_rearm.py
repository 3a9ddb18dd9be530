# SPDX-License-Identifier: Apache-2.0
"""The period of re-arming, for steps with stretches of given times."""

from __future__ import annotations

import numpy as np
import pytest

from sentineld.model.protocol import Event
from sentineld.profile.steps import Step
from sentineld.session.work.rearm import rearm_period_us
from tests.unit.profile.attributed import ring
from tests.unit.trainer import PAGE

MS = 1_000_000
NO_CUTS = np.zeros(0, np.uint32)


def step_of(stretches_ms: tuple[int, ...], allocations_ms: tuple[int, ...] = ()) -> Step:
    """A step. stretches_ms: duration of each stretch. allocations_ms: time of each allocation since
    the beginning of the step."""
    entries = [(Event.STEP, 1, 1, 0)]
    entries += [(Event.BOUNDARY, 1, 0, at) for at in range(len(stretches_ms))]
    entries += [(Event.ALLOC, PAGE, PAGE, at) for at in range(len(allocations_ms))]
    records = ring(*entries)
    begins_ms = [sum(stretches_ms[:at]) for at in range(len(stretches_ms))]
    records["time_ns"] = np.array([0, *begins_ms, *allocations_ms]) * MS
    return Step(records, 1, sum(stretches_ms) * MS, 0, {})


@pytest.mark.parametrize(
    ("stretches_ms", "period_us"),
    [
        ((40,), 10_000),
        ((8, 8, 8), 2000),
        ((1, 1, 1, 1, 20), 5000),  # most of the time is in the long stretch
        ((1000, 8, 8, 8), 2000),  # the training waits for data before the first layer
        ((1, 2, 1), 1000),  # not below the module's minimum
        ((100_000,), 10_000_000),
    ],
)
def test_a_typical_stretch_has_four_periods(stretches_ms: tuple[int, ...], period_us: int) -> None:
    assert rearm_period_us(step_of(stretches_ms), NO_CUTS) == period_us


def test_cuts_divide_stretches() -> None:
    step = step_of((100, 40, 8), allocations_ms=(50, 108, 116, 124, 130, 132, 144))
    assert rearm_period_us(step, NO_CUTS) == 10_000
    assert rearm_period_us(step, np.array([0, 1, 2, 3, 5], np.uint32)) == 2000
