# SPDX-License-Identifier: Apache-2.0
"""The budget that is reserved for a process, and its state files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sentineld.base.errors import SentinelError
from sentineld.base.units import FastBudget
from sentineld.session.attachment import OVERDUE
from sentineld.session.lifecycle import State, Status
from sentineld.session.live.managed import Managed
from sentineld.session.plans import entering
from tests.unit.plan.toys import PAGE
from tests.unit.toydriver import CAPACITY_BYTES, PLANNED, ToyDriver, state_files
from tests.unit.waiting import wait

MORE = FastBudget.parse("512M")


def test_plans_for_another_share_are_forgotten(sharing: ToyDriver) -> None:
    driver = sharing.driver
    assert len(driver.following.shapes) == 1
    sharing.diverge()
    driver.turn()
    assert driver.lifecycle.state == "allocation"
    assert len(driver.following.shapes) == 1
    driver.lifecycle.enter(State.ACCESS, "test")
    driver.lifecycle.enter(State.PLANNING, "test")
    driver.turn()
    assert driver.attachment.goal is not None
    assert driver.attachment.goal.fast.bytes == 64 * PAGE
    assert len(driver.following.shapes) == 0


def test_a_switch_that_ends_because_the_plan_is_left_reserves_nothing(managed: ToyDriver) -> None:
    replanning = managed.driver.attach(MORE, None)
    assert replanning is not None
    managed.check_reserved(MORE.bytes)
    managed.diverge()
    managed.driver.turn()
    assert managed.driver.lifecycle.state == "allocation"
    with pytest.raises(SentinelError, match="diverged from the plan"):
        replanning.wait()
    managed.check_reserved(PLANNED.budget_bytes)


def test_an_attach_that_fails_reserves_nothing(
    managed: ToyDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(pid: int, uid: int) -> None:
        raise OSError("Too many open files")

    managed.driver.detach()
    with monkeypatch.context() as patch:
        patch.setattr(managed.machine, "watch", refuse)
        with pytest.raises(OSError, match="Too many"):
            managed.driver.attach(MORE, None)
    managed.check_reserved(0)
    managed.driver.attach(MORE, None)
    managed.check_reserved(MORE.bytes)


def test_a_session_waits_as_long_as_the_process_needs_to_take_a_layout(
    managed: ToyDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example for the end of an evaluation."""
    managed.diverge()
    managed.driver.turn()
    assert managed.driver.following.managed is None
    monkeypatch.setattr(entering, "LAYOUT_WAIT_S", -1.0)
    managed.driver.attachment.send(PLANNED, "the plan", "test")
    managed.driver.turn()
    assert managed.driver.lifecycle.status == Status(State.ENTERING, OVERDUE)
    managed.take_layout()
    assert managed.driver.lifecycle.state == "managed"


def test_a_budget_is_released_only_when_its_pages_are_gone(
    managed: ToyDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def turn_until_reserved(budget_bytes: int) -> None:
        def reserved() -> bool:
            managed.driver.turn()
            return managed.machine.budgets.held_bytes(managed.linked.link) == budget_bytes

        wait(reserved)

    charged_bytes = 5 * PAGE
    monkeypatch.setattr(Managed, "fast_bytes", lambda _: charged_bytes)
    smaller = replace(PLANNED, budget_bytes=2 * PAGE)
    managed.driver.attachment.send(smaller, "another plan", "test")
    managed.check_reserved(PLANNED.budget_bytes)
    managed.take_layout()
    assert managed.driver.lifecycle.state == "managed"
    assert managed.machine.budgets.held_bytes(managed.linked.link) > 2 * PAGE
    turn_until_reserved(5 * PAGE)
    charged_bytes = 3 * PAGE
    turn_until_reserved(3 * PAGE)
    charged_bytes = PAGE
    turn_until_reserved(2 * PAGE)


def test_a_plan_is_saved_before_its_layout_is_sent(managed: ToyDriver, tmp_path: Path) -> None:
    before = state_files(tmp_path)
    managed.linked.shim.hang_up()
    with pytest.raises(EOFError):
        managed.driver.attachment.send(PLANNED, "another plan", "test")
    assert len(state_files(tmp_path)) == len(before) + 1
    assert managed.driver.lifecycle.state == "managed"


def test_a_plan_is_saved_only_if_its_budget_is_free(managed: ToyDriver, tmp_path: Path) -> None:
    before = state_files(tmp_path)
    larger = replace(PLANNED, budget_bytes=CAPACITY_BYTES + 1)
    with pytest.raises(SentinelError, match="exceeds the fast tier"):
        managed.driver.attachment.send(larger, "another plan", "test")
    assert state_files(tmp_path) == before
    managed.check_reserved(PLANNED.budget_bytes)


def test_release_leaves_no_budget_even_if_the_process_cannot_be_unwatched(
    managed: ToyDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(pid: int) -> None:
        raise OSError("the watcher is closed")

    with monkeypatch.context() as patch:
        patch.setattr(managed.machine, "unwatch", refuse)
        with pytest.raises(OSError, match="watcher"):
            managed.driver.attachment.release()
    managed.check_reserved(0)
