# SPDX-License-Identifier: Apache-2.0
"""A session's curve, and the budget that the session holds while its share changes."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from sentineld.machine.shared import SharedBudget
from sentineld.plan.division import Curve, Terms
from sentineld.session.plans import sharing
from sentineld.session.plans.sharing import Sharing
from tests.unit.plan.toys import PAGE
from tests.unit.session.plans.test_following import PLANNED, Process
from tests.unit.waiting import wait

SHARED = 20 * PAGE
OTHER = "another session"


@pytest.fixture
def process() -> Iterator[Process]:
    made = Process(str(SHARED))
    made.enter()
    yield made
    made.close()


def joined(process: Process) -> tuple[Sharing, SharedBudget]:
    """Add a session to the shared budget. The session holds the budget of its live plan and may get
    all of the shared budget."""
    shared, link = process.machine.shared, process.linked.link
    assert shared is not None
    shared.join(link, Terms())
    shared.count(link)
    shared.budgets.reserve(link, PLANNED.budget_bytes)
    return Sharing(link, process.machine), shared


def test_a_share_is_reserved_only_when_others_have_released_it(process: Process) -> None:
    made, shared = joined(process)
    shared.budgets.reserve(OTHER, 10 * PAGE)
    assert made.resize(process.following, "static") is None
    assert made.take(process.following) is None
    shared.budgets.settle(OTHER, 0)
    assert made.resize(process.following, "static") == SHARED
    assert shared.budgets.held_bytes(process.linked.link) == SHARED


def test_a_share_that_no_plan_fits_is_not_tried_again_at_once(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _ = joined(process)
    assert made.resize(process.following, "static") == SHARED
    made.failed(SHARED)
    assert made.resize(process.following, "static") is None
    monkeypatch.setattr(sharing, "AGAIN_S", 0.0)
    made.failed(SHARED)
    assert made.resize(process.following, "static") == SHARED


def test_memory_is_released_only_when_its_pages_are_gone(process: Process) -> None:
    made, shared = joined(process)
    link, following = process.linked.link, process.following
    shared.budgets.reserve(link, SHARED)
    process.enter(replace(PLANNED, budget_bytes=2 * PAGE))
    assert following.managed is not None
    wait(lambda: following.managed and following.managed.residency_known)
    charged_bytes = following.managed.fast_bytes()
    assert 2 * PAGE < charged_bytes <= 7 * PAGE
    made.settle(following)
    assert 2 * PAGE <= shared.budgets.held_bytes(link) <= charged_bytes


def test_memory_is_not_released_before_the_resident_pages_are_known(process: Process) -> None:
    made, shared = joined(process)
    link, following = process.linked.link, process.following
    shared.budgets.reserve(link, SHARED)
    wait(lambda: following.managed and following.managed.residency_known)
    with process.pages.querying:
        process.enter(replace(PLANNED, budget_bytes=2 * PAGE))
        made.settle(following)
        assert shared.budgets.held_bytes(link) == SHARED
    wait(lambda: following.managed and following.managed.residency_known)
    made.settle(following)
    assert shared.budgets.held_bytes(link) <= 7 * PAGE


def test_a_first_share_that_shrinks_before_the_plan_is_made_is_released() -> None:
    process = Process(str(SHARED))
    made, shared = joined(process)
    link = process.linked.link
    assert made.take(process.following) == SHARED
    shared.join(link, Terms(most_bytes=5 * PAGE))
    assert made.take(process.following) == 5 * PAGE
    assert shared.budgets.held_bytes(link) == 5 * PAGE
    process.close()


def test_the_curve_of_a_shape_is_made_once(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, shared = joined(process)
    link = process.linked.link

    def known() -> bool:
        made.resize(process.following, "interleave")
        share = shared.explain(link)
        return share is not None and share.slowdown is not None

    wait(known)
    calls: list[object] = []
    monkeypatch.setattr(process.machine.planners, "step_times_ns", calls.append)
    made.resize(process.following, "interleave")
    assert not calls


def test_a_policy_without_any_plan_gives_no_curve(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, shared = joined(process)
    link = process.linked.link
    shared.learn(link, Curve((0, SHARED), (2.0, 1.0)))
    monkeypatch.setattr(process.machine.planners, "step_times_ns", lambda *_: [math.inf])

    def forgotten() -> bool:
        made.resize(process.following, "static")
        share = shared.explain(link)
        return share is not None and share.slowdown is None

    wait(forgotten)


def test_a_session_that_ends_does_not_wait_for_its_turn(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharing, "TURN_POLL_S", 0.01)
    made, shared = joined(process)

    def making() -> bool:
        return any(one.name.startswith("predicting") for one in threading.enumerate())

    with shared.curve_turn:
        made.resize(process.following, "static")
        assert making()
        made.stop()
        wait(lambda: not making())
