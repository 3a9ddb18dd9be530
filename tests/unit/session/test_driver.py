# SPDX-License-Identifier: Apache-2.0
"""Which plans are resumed, and the budget that is reserved while another plan is being made.

tests/integration/test_emulated.py drives trainings through all states.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sentineld.base.errors import SentinelError
from sentineld.base.units import FastBudget
from sentineld.config import Config
from sentineld.machine.machine import Machine
from sentineld.model.protocol import Mode, Placement
from sentineld.plan.division import Terms
from sentineld.session import requests
from sentineld.session.driver import Driver
from sentineld.session.lifecycle import CALLED_EXEC, State
from sentineld.session.live.shapes import Planned, Shape
from sentineld.session.state import Nodes, Saved, StateFiles
from tests.unit.plan.toys import HEAP, PAGE, toy_plan, toy_profile, two_tiers
from tests.unit.toyprocess import ToyPages, ToySubstrate, toy_linked
from tests.unit.waiting import PATIENCE_S, wait

LAYOUT_ID = 7
NODES = ((0,), (1,))  # the nodes of two_tiers()
CAPACITY_BYTES = 1 << 30
PLAN = replace(toy_plan(), policy="sentinel")
PLANNED = Planned(Shape(1, "toy"), toy_profile(), toy_profile(), PLAN, 7 * PAGE, 0.5)
MORE = FastBudget.parse("512M")


class Managed:
    """The driver of a process that follows the toy plan. Planning waits until `let` is set, and
    then fails."""

    def __init__(
        self,
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
        nodes: Nodes = NODES,
        welcomed: bool = True,
        shared_fast: str = "",
        fast: str = str(7 * PAGE),
    ) -> None:
        """nodes: the tiers' nodes when the plan was saved. welcomed: whether an earlier daemon has
        welcomed the program that the process runs. shared_fast: the shared budget, which the
        session shares; "": it has a budget of its own. fast: the saved budget."""
        self.linked = toy_linked(layout_id=LAYOUT_ID)
        substrate = ToySubstrate(ToyPages())
        config = Config(huge_pages="off", shared_fast=shared_fast)
        self.machine = Machine(config, substrate, two_tiers(1e12), [])
        states = StateFiles(folder)
        self.driver = Driver(self.linked.link, self.machine, states, lambda reason: None)
        self.let = threading.Event()
        monkeypatch.setattr(requests, "planned_for", self._plan)
        # A process whose daemon was restarted names the session in its next hello.
        self.linked.link.hello["session"] = self.driver.name if welcomed else ""
        terms = {"weight": 2.0} if shared_fast else None
        saved = Saved(fast, "sentinel", "cxl", nodes=nodes, terms=terms)
        states.entering(self.driver.name, saved, LAYOUT_ID, PLANNED)
        self.driver.resume()

    def _plan(self, *_: object) -> Planned:
        assert self.let.wait(PATIENCE_S)
        raise SentinelError("failed", "no plan")

    def check_reserved(self, budget_bytes: int | None) -> None:
        """Check that the session has reserved this budget, and no more."""
        assert budget_bytes is not None
        self.machine.budgets.require("another session", CAPACITY_BYTES - budget_bytes)
        with pytest.raises(SentinelError):
            self.machine.budgets.require("another session", CAPACITY_BYTES - budget_bytes + 1)

    def diverge(self) -> None:
        """Run three steps that do not follow the plan."""
        self.linked.set(step=13, mode=Mode.DIVERGED, diverged_steps=3, diverged_in_row=3)

    def close(self) -> None:
        self.let.set()
        self.driver.end("the test is over")
        self.machine.close()
        self.linked.close_shim()


@pytest.fixture
def managed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Managed]:
    made = Managed(tmp_path, monkeypatch)
    assert made.driver.lifecycle.state == "managed"
    yield made
    made.close()


@pytest.fixture
def sharing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Managed]:
    """A managed process that shares 64 pages."""
    made = Managed(tmp_path, monkeypatch, shared_fast=str(64 * PAGE))
    assert made.driver.lifecycle.state == "managed"
    yield made
    made.close()


def test_a_session_that_shares_is_resumed_with_its_terms(sharing: Managed) -> None:
    shared, link = sharing.machine.shared, sharing.linked.link
    assert shared is not None
    share = shared.explain(link)
    assert share is not None
    assert share.weight == 2.0
    assert shared.budgets.held_bytes(link) == PLANNED.budget_bytes
    sharing.check_reserved(64 * PAGE)  # the shared budget, not the session's


def test_another_share_is_planned_for_and_kept_reserved_meanwhile(sharing: Managed) -> None:
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


def test_a_session_waits_for_memory_that_others_hold(sharing: Managed) -> None:
    driver, shared = sharing.driver, sharing.machine.shared
    assert shared is not None
    shared.budgets.reserve("another session", 50 * PAGE)
    driver.turn()
    assert shared.budgets.held_bytes(sharing.linked.link) == PLANNED.budget_bytes
    driver.attach(None, None, {"most_bytes": 14 * PAGE})
    driver.turn()
    with pytest.raises(SentinelError, match="is being replanned"):
        driver.attach(None, "static")


def test_terms_change_without_planning(sharing: Managed) -> None:
    driver = sharing.driver
    assert driver.attach(None, None, {"most_bytes": 7 * PAGE}) is None
    assert driver.goal is not None
    assert driver.goal.terms == Terms(2.0, 0, 7 * PAGE)
    with pytest.raises(SentinelError, match="exceeds the maximum"):
        driver.attach(None, None, {"least_bytes": 8 * PAGE})
    assert driver.goal.terms == Terms(2.0, 0, 7 * PAGE)
    with pytest.raises(SentinelError, match="shares the shared budget"):
        driver.attach(MORE, None)
    driver.turn()
    assert driver.attach(None, "static") is not None


def test_terms_that_change_during_planning_are_kept(
    sharing: Managed, monkeypatch: pytest.MonkeyPatch
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
    assert driver.goal is not None
    assert driver.goal.terms == Terms(3.0)


def test_a_switch_that_is_refused_changes_no_terms(sharing: Managed) -> None:
    driver = sharing.driver
    driver.turn()
    with pytest.raises(SentinelError, match="is being replanned"):
        driver.attach(None, "static", {"weight": 3.0})
    assert driver.goal is not None
    assert driver.goal.terms == Terms(2.0)


def test_plans_for_another_share_are_forgotten(sharing: Managed) -> None:
    driver = sharing.driver
    assert len(driver.following.shapes) == 1
    sharing.diverge()
    driver.turn()
    assert driver.lifecycle.state == "allocation"
    assert len(driver.following.shapes) == 1
    driver.lifecycle.enter(State.ACCESS, "test")
    driver.lifecycle.enter(State.PLANNING, "test")
    driver.turn()
    assert driver.goal is not None
    assert driver.goal.fast.bytes == 64 * PAGE
    assert len(driver.following.shapes) == 0


def test_a_session_with_a_share_of_0_bytes_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Managed(tmp_path, monkeypatch, shared_fast=str(64 * PAGE), fast="0")
    assert made.driver.lifecycle.state == "managed"
    made.close()


def test_a_plan_that_exceeds_a_smaller_shared_budget_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Managed(tmp_path, monkeypatch, shared_fast=str(4 * PAGE))
    assert made.driver.lifecycle.state == "attached"
    assert "exceeds the shared budget's" in made.driver.lifecycle.status.reason
    assert made.driver.goal is not None
    assert made.driver.goal.fast.bytes == 4 * PAGE
    made.close()


def test_terms_need_a_shared_budget(managed: Managed) -> None:
    with pytest.raises(SentinelError, match="has a budget of its own"):
        managed.driver.attach(None, None, {"weight": 2.0})
    managed.driver.detach()
    with pytest.raises(SentinelError, match="has no shared budget"):
        managed.driver.attach(None, None, {"weight": 2.0})
    with pytest.raises(SentinelError, match="has no weight"):
        managed.driver.attach(MORE, None, {"weight": 2.0})


def test_a_switch_that_ends_because_the_plan_is_left_reserves_nothing(managed: Managed) -> None:
    replanning = managed.driver.attach(MORE, None)
    assert replanning is not None
    managed.check_reserved(MORE.bytes)
    managed.diverge()
    managed.driver.turn()
    assert managed.driver.lifecycle.state == "allocation"
    with pytest.raises(SentinelError, match="diverged from the plan"):
        replanning.wait()
    managed.check_reserved(PLANNED.budget_bytes)


def test_a_switch_that_is_refused_reserves_nothing(
    managed: Managed, monkeypatch: pytest.MonkeyPatch
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


def test_placements_for_which_no_plan_is_possible_keep_the_live_plan(managed: Managed) -> None:
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


def test_a_plan_for_other_nodes_is_not_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process is attached anew, with the saved budget and policy."""
    managed = Managed(tmp_path, monkeypatch, nodes=NODES[::-1])
    assert managed.driver.lifecycle.state == "attached"
    assert str(managed.driver.goal) == "policy sentinel, fast 28672"
    managed.close()


def files(folder: Path) -> list[str]:
    return sorted(file.name for file in (folder / "sessions").iterdir())


def test_a_program_does_not_inherit_the_plan_of_the_one_before_exec(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    managed = Managed(tmp_path, monkeypatch, welcomed=False)
    assert managed.driver.lifecycle.state == "registered"
    assert managed.driver.goal is None
    assert files(tmp_path) == []
    managed.close()


@pytest.mark.parametrize(
    ("reason", "kept"), [(CALLED_EXEC, False), ("the process closed its connection", True)]
)
def test_exec_ends_a_session_for_good(
    managed: Managed, tmp_path: Path, reason: str, kept: bool
) -> None:
    assert len(files(tmp_path)) == 2
    managed.driver.end(reason)
    assert bool(files(tmp_path)) == kept


def test_a_reloaded_barrier_timeout_holds_from_the_next_attach_on(managed: Managed) -> None:
    def timeout_ns() -> int:
        return managed.linked.link.segment.barrier_timeout_ns()

    managed.driver.set_barrier_timeout()
    managed.machine.configure(replace(managed.machine.config, barrier_timeout_ms=7))
    assert timeout_ns() == 2_000_000_000
    managed.driver.detach()
    assert managed.driver.attach(None, None) is None
    assert timeout_ns() == 7_000_000
