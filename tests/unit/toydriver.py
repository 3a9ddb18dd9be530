# SPDX-License-Identifier: Apache-2.0
"""A session's Driver for the toy process (toyprocess.py), which an earlier daemon managed."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from sentineld.base.errors import SentinelError
from sentineld.config import Config
from sentineld.machine.machine import Machine
from sentineld.model.protocol import Mode
from sentineld.plan.division import Terms
from sentineld.session import requests
from sentineld.session.driver import Driver
from sentineld.session.live.shapes import Planned, Shape
from sentineld.session.resuming import Resuming
from sentineld.session.state import Nodes, Saved, StateFiles
from tests.unit.plan.toys import PAGE, toy_plan, toy_profile, two_tiers
from tests.unit.toyprocess import ToyPages, ToySubstrate, toy_linked
from tests.unit.waiting import PATIENCE_S

LAYOUT_ID = 7
NODES = ((0,), (1,))  # the nodes of two_tiers()
CAPACITY_BYTES = 1 << 30
PLAN = replace(toy_plan(), policy="sentinel")
PLANNED = Planned(Shape(1, "toy"), toy_profile(), toy_profile(), PLAN, 7 * PAGE, 0.5)


class ToyDriver:
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
        answered the hello of the program that the process runs. shared_fast: the shared budget,
        which the session shares; "": it has a budget of its own. fast: the saved budget."""
        self.linked = toy_linked(layout_id=LAYOUT_ID)
        substrate = ToySubstrate(ToyPages())
        config = Config(huge_pages="off", shared_fast=shared_fast)
        self.machine = Machine(config, substrate, two_tiers(1e12), [])
        states = StateFiles(folder)
        self.driver = Driver(self.linked.link, self.machine, states, lambda reason: None)
        self.let = threading.Event()
        monkeypatch.setattr(requests, "planned_for", self._plan)
        # A process whose daemon was restarted names the session in its next hello.
        self.linked.link.hello["session"] = self.driver.attachment.name if welcomed else ""
        terms = Terms(2.0) if shared_fast else None
        saved = Saved(fast, "sentinel", "cxl", nodes=nodes, terms=terms)
        states.entering(self.driver.attachment.name, saved, LAYOUT_ID, PLANNED)
        Resuming(self.linked.link, self.machine, self.driver).begin()

    def _plan(self, *_: object) -> Planned:
        assert self.let.wait(PATIENCE_S)
        raise SentinelError("failed", "no plan")

    def check_reserved(self, budget_bytes: int | None) -> None:
        """Check that the session has reserved this budget, and no more."""
        assert budget_bytes is not None
        self.machine.budgets.require("another session", CAPACITY_BYTES - budget_bytes)
        with pytest.raises(SentinelError):
            self.machine.budgets.require("another session", CAPACITY_BYTES - budget_bytes + 1)

    def take_layout(self) -> None:
        """Answer, as the process would, that the layout that was sent last is live."""
        messages = self.linked.shim.receive()
        sent = [message for message in messages if message["type"] == "layout"][-1]
        self.driver.take({"type": "layout", "layout_id": sent["layout_id"], "ok": True})

    def diverge(self) -> None:
        """Run three steps that do not follow the plan."""
        self.linked.set(step=13, mode=Mode.DIVERGED, diverged_steps=3, diverged_in_row=3)

    def close(self) -> None:
        self.let.set()
        self.driver.end("the test is over")
        self.machine.close()
        self.linked.close_shim()


def state_files(folder: Path) -> list[str]:
    """The names of the sessions' state files."""
    return sorted(file.name for file in (folder / "sessions").iterdir())
