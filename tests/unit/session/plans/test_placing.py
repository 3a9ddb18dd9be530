# SPDX-License-Identifier: Apache-2.0
"""Each change of placements leads to one new plan; two such plans are at least AGAIN_S apart."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sentineld.model.protocol import Placement
from sentineld.session.plans import placing
from sentineld.session.plans.placing import Placing
from tests.unit.plan.toys import HEAP
from tests.unit.session.plans.test_following import PLANNED, Process

STATE = {HEAP: int(Placement.SLOW)}
"""A placement of the toy's state (row 3): on the slow tier."""


@pytest.fixture
def process() -> Iterator[Process]:
    made = Process()
    made.enter()
    yield made
    made.close()


def test_nothing_is_planned_without_a_message_or_a_change(process: Process) -> None:
    placing = Placing()
    assert placing.wanted(process.following, None) is None
    assert placing.wanted(process.following, {}) is None
    assert placing.wanted(process.following, {HEAP + 1: 1}) is None


def test_a_change_is_planned_once(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placing, "AGAIN_S", 0.0)
    made, rows = Placing(), dict(STATE)
    wanted = made.wanted(process.following, rows)
    assert wanted is not None
    for profile in (wanted.profile, wanted.charged):
        assert profile.tensors["placed"].tolist() == [0, 0, 0, Placement.SLOW, 0]
    assert not PLANNED.profile.tensors["placed"].any()
    made.begun(process.following, rows)
    assert made.wanted(process.following, rows) is None
    # Another dict object stands for another message, in which the process has sent its placements
    # again.
    assert made.wanted(process.following, dict(STATE)) is not None


def test_plans_for_changes_keep_their_distance(process: Process) -> None:
    made = Placing()
    assert made.wanted(process.following, dict(STATE)) is not None
    made.begun(process.following, dict(STATE))
    assert made.wanted(process.following, dict(STATE)) is None
