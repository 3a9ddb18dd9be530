# SPDX-License-Identifier: Apache-2.0
"""Predictions and moves of DeepUM, checked by hand: four cells of ten pages.

An execution is a stretch. In an observation of seen(), stretch k uses cell k.
"""

from __future__ import annotations

import pytest

from sentineld.model.plan import SLOT_DROP
from sentineld.plan.policy import MoveRequest
from sentineld.policies.registry import policy
from sentineld.policies.rivals.deepum import AHEAD, DeepUm, Executions, Learner
from sentineld.simulate.simulate import simulate
from tests.unit.plan.toys import toy_profile
from tests.unit.policies.rivals.laps import PAGE, Life, lap, moving
from tests.unit.policies.rivals.observing import seen


def test_the_next_executions_are_known_once_a_sequence_repeats() -> None:
    executions = Executions()
    for execution in (0, 1, 2, 3, 0, 1, 2):
        executions.note(execution)
    # Nothing has followed the sequence 3, 0, 1, 2 yet.
    assert executions.predict(8) == []
    executions.note(3)
    # Each sequence of four has a successor now. For example, 3, 0, 1, 2 is followed by 3.
    assert executions.predict(6) == [0, 1, 2, 3, 0, 1]
    assert executions.predict(2) == [0, 1]


def test_an_execution_is_predicted_by_the_three_before_it_too() -> None:
    executions = Executions()
    for execution in (1, 0, 0, 9, 2, 3, 0, 0, 9, 4, 1, 0, 0, 9):
        executions.note(execution)
    # 9 was followed by 2 and by 4, but the sequence 1, 0, 0, 9 only by 2.
    assert executions.predict(1) == [2]


def learnt(ahead: int, fast: list[int]) -> Learner:
    """A prefetcher that has seen two steps."""
    prefetcher = Learner(ahead)
    for stretch in (0, 1, 2, 3, 0, 1, 2, 3):
        prefetcher.tick(seen(stretch, fast))
    return prefetcher


def test_nothing_moves_while_nothing_is_known() -> None:
    prefetcher = Learner(2)
    for stretch in (0, 1, 2, 3, 0, 1, 2):
        assert prefetcher.tick(seen(stretch, [0, 0, 10, 10])) == []


def test_blocks_of_the_next_executions_are_fetched_and_others_evicted() -> None:
    # Cells 2 and 3 are fast. Stretch 3 has just ended: cells 0 and 1 are used next.
    prefetcher = Learner(2)
    for stretch in (0, 1, 2, 3, 0, 1, 2):
        prefetcher.tick(seen(stretch, [0, 0, 10, 10]))
    assert prefetcher.tick(seen(3, [0, 0, 10, 10])) == [
        MoveRequest(2, 1, 10),
        MoveRequest(3, 1, 10),
        MoveRequest(0, 0, 10),
        MoveRequest(1, 0, 10),
    ]
    # Only the next execution is predicted, which uses cell 1. 7 pages are free, so 3 are evicted.
    near = learnt(1, [0, 0, 10, 3])
    assert near.tick(seen(0, [0, 0, 10, 3], free=7)) == [
        MoveRequest(2, 1, 3),
        MoveRequest(1, 0, 10),
    ]


def test_the_least_recently_migrated_block_is_evicted_first() -> None:
    # Cell 2 became fast later than cell 3.
    prefetcher = learnt(1, [0, 0, 0, 10])
    found = prefetcher.tick(seen(0, [0, 0, 10, 10]))
    assert found == [MoveRequest(3, 1, 10), MoveRequest(1, 0, 10)]


def test_predicted_births_get_room() -> None:
    prefetcher = learnt(1, [0, 0, 10, 10])
    # Cell 1 is next, and its pages are not born yet.
    absent = seen(0, [0, 0, 10, 10])
    absent.slow[1] = 0
    assert prefetcher.tick(absent) == [MoveRequest(2, 1, 10)]


def test_the_number_of_executions_is_swept() -> None:
    found = policy("deepum")
    assert isinstance(found, DeepUm)
    reactors = found.reactors(toy_profile())
    assert [text for text, _ in reactors] == [f"{ahead} executions ahead" for ahead in AHEAD]
    assert all(reactor.interval_ns == 0 for _, reactor in reactors)


def test_pages_of_freed_tensors_are_dropped_and_not_moved() -> None:
    # Fast memory has room for one of three tensors of ten pages: two that die within the step, at
    # different addresses, and a parameter. Only the parameter has contents that must be kept, so it
    # is demoted and promoted once in each step. The others are born in the room that the parameter
    # or the dead tensor has left, so no access is slow.
    profile = lap(6, Life(10, (0,), (0, 0)), Life(10, (1, 2), (1, 2)), Life(10, (4,)))
    tiers, budget_bytes = moving(pages_per_s=100), 10 * PAGE
    plan = policy("deepum").plan(profile, tiers, budget_bytes)
    assert all(plan.layout.slots["flags"] & SLOT_DROP)
    assert len(set(plan.layout.slots["offset"].tolist())) == 2
    found = simulate(profile, policy("deepum"), tiers, budget_bytes, steps_max=12)
    assert found.step_seconds == pytest.approx(found.fast_only_seconds)
    assert found.bytes_demoted == found.bytes_promoted == 10 * PAGE
