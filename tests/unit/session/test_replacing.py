# SPDX-License-Identifier: Apache-2.0
"""Planning again while a plan is live: what is reserved during the planning, and what is kept if
the planning fails."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from sentineld.base.errors import SentinelError
from sentineld.base.units import FastBudget
from sentineld.model.protocol import Placement
from sentineld.plan.division import Terms
from sentineld.session import requests
from tests.unit.plan.toys import HEAP, PAGE
from tests.unit.toydriver import PLANNED, ToyDriver
from tests.unit.waiting import wait

MORE = FastBudget.parse("512M")


def test_another_share_is_planned_for_and_kept_reserved_meanwhile(sharing: ToyDriver) -> None:
    driver, shared, link = sharing.driver, sharing.machine.shared, sharing.linked.link
    assert shared is not None
    driver.turn()
    assert shared.budgets.held_bytes(link) == 64 * PAGE
    with pytest.raises(SentinelError, match="is being replanned"):
        driver.attach(None, "static")
    sharing.let.set()

    def kept() -> bool:
        driver.turn()
        return "the live plan is kept" in driver.lifecycle.status.reason

    wait(kept)
    assert shared.budgets.held_bytes(link) < 64 * PAGE
    # Planning for the same share is not repeated at once.
    driver.turn()
    assert driver.attach(None, "static") is not None


def test_a_session_waits_for_memory_that_others_hold(sharing: ToyDriver) -> None:
    driver, shared = sharing.driver, sharing.machine.shared
    assert shared is not None
    shared.budgets.reserve("another session", 50 * PAGE)
    driver.turn()
    assert shared.budgets.held_bytes(sharing.linked.link) == PLANNED.budget_bytes
    driver.attach(None, None, {"most_bytes": 14 * PAGE})
    driver.turn()
    with pytest.raises(SentinelError, match="is being replanned"):
        driver.attach(None, "static")


def test_terms_that_change_during_planning_are_kept(
    sharing: ToyDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = sharing.driver
    larger = replace(PLANNED, budget_bytes=64 * PAGE)
    monkeypatch.setattr(requests, "planned_for", lambda *_: larger)
    driver.turn()
    assert driver.attach(None, None, {"weight": 3.0}) is None

    def entering() -> bool:
        driver.turn()
        return driver.lifecycle.state == "entering"

    wait(entering)
    assert driver.attachment.goal is not None
    assert driver.attachment.goal.terms == Terms(3.0)


def test_a_switch_that_is_refused_reserves_nothing(
    managed: ToyDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    replanning = managed.driver.attach(MORE, None)
    assert replanning is not None
    managed.driver.cancel(replanning)
    with pytest.raises(SentinelError, match="for an earlier request"):
        managed.driver.attach(MORE, None)
    managed.check_reserved(PLANNED.budget_bytes)
    managed.let.set()
    wait(replanning.ready)

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError):
            managed.driver.attach(MORE, None)
    managed.check_reserved(PLANNED.budget_bytes)
    assert managed.driver.attach(MORE, None) is not None


def test_placements_for_which_no_plan_is_possible_keep_the_live_plan(managed: ToyDriver) -> None:
    driver = managed.driver
    driver.turn()
    driver.take({"type": "placed", "tensors": [[HEAP, int(Placement.FAST)]]})
    driver.turn()
    with pytest.raises(SentinelError, match="is being replanned"):
        driver.attach(MORE, None)
    managed.let.set()

    def kept() -> bool:
        driver.turn()
        return "the live plan is kept" in driver.lifecycle.status.reason

    wait(kept)
    assert driver.lifecycle.status.reason == "the live plan is kept; not replanned: no plan"
    assert driver.lifecycle.state == "managed"
    managed.check_reserved(PLANNED.budget_bytes)
    assert driver.attach(MORE, None) is not None
