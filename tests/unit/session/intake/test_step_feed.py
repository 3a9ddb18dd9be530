# SPDX-License-Identifier: Apache-2.0
"""Reading a process's ring: whole steps, or the reason why there are none."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest

from sentineld.base.errors import SentinelError
from sentineld.model.protocol import Event
from sentineld.model.records import OP_ACCESS_DTYPE, Records
from sentineld.observe.control_segment import ControlSegment
from sentineld.profile.steps import Step
from sentineld.session.intake.step_feed import StepFeed, require_plausible
from tests.unit.segment import RECORDS, Writer
from tests.unit.trainer import PAGE
from tests.unit.workloads import Network, train

RING = train(
    Network(blocks=1, weights=1, weight_bytes=PAGE, activation_bytes=PAGE), 5
).take_records()
CHUNK = RECORDS // 2


class Fed:
    """A step feed and the writer of its ring."""

    def __init__(self) -> None:
        self.writer = Writer()
        self.feed = StepFeed(ControlSegment(self.writer.fd))

    def tell(self, ring: Records) -> list[Step]:
        """Write these records in chunks; read the whole steps after each chunk."""
        steps = []
        for begin in range(0, len(ring), CHUNK):
            self.writer.put(ring[begin : begin + CHUNK])
            steps += self.feed.steps()
        return steps


@pytest.fixture
def fed() -> Iterator[Fed]:
    made = Fed()
    yield made
    os.close(made.writer.fd)


def numbers(steps: list[Step]) -> list[int]:
    return [step.number for step in steps]


def test_whole_steps_come_one_by_one(fed: Fed) -> None:
    assert numbers(fed.tell(RING)) == [1, 2, 3, 4, 5]
    assert list(fed.feed.steps()) == []


def test_records_from_before_the_begin_are_discarded(fed: Fed) -> None:
    begins = np.flatnonzero(RING["event"] == Event.STEP)
    fed.tell(RING[: begins[1] + 3])
    fed.feed.begin()
    assert numbers(fed.tell(RING[begins[1] + 3 :])) == [3, 4, 5]


def test_no_step_over_lost_records_is_whole(fed: Fed) -> None:
    begins = np.flatnonzero(RING["event"] == Event.STEP)
    inside = int(begins[2]) + 4  # in the third step
    assert numbers(fed.tell(RING[:inside])) == [1, 2]
    fed.writer.header["ring_lost"] += 5
    assert numbers(fed.tell(RING[inside + 5 :])) == [4, 5]


def test_an_implausible_step_is_an_error(fed: Fed) -> None:
    ring = RING.copy()
    ring["bytes"][np.flatnonzero(ring["event"] == Event.ALLOC)[-1]] = 1 << 60
    with pytest.raises(SentinelError, match="step 5 is outside the address space"):
        fed.tell(ring)


def test_implausible_accesses_are_an_error() -> None:
    ops = np.zeros(2, OP_ACCESS_DTYPE)
    require_plausible(ops)
    ops["address"][1] = 1 << 50
    with pytest.raises(SentinelError, match="outside the address space"):
        require_plausible(ops)
