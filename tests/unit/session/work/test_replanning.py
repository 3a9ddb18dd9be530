# SPDX-License-Identifier: Apache-2.0
"""A request for another budget waits for a plan, or raises an error that says why there is none."""

from __future__ import annotations

import threading

from sentineld.base.errors import SentinelError
from sentineld.base.units import FastBudget
from sentineld.session.live.shapes import Planned, Shape
from sentineld.session.work.planning import Goal
from sentineld.session.work.replanning import Replanning
from tests.unit.plan.toys import PAGE, toy_plan, toy_profile
from tests.unit.waiting import PATIENCE_S, wait

GOAL = Goal(FastBudget.parse("30%"), "auto")
PLANNED = Planned(Shape(1, ""), toy_profile(), toy_profile(), toy_plan(), 9 * PAGE, 0.0)


class Waiting:
    """A replanning, and a thread that waits for it. The planner waits until made() is called."""

    def __init__(self, problem: SentinelError | None = None) -> None:
        self.problem = problem
        self.let = threading.Event()
        self.heard: list[SentinelError | None] = []
        self.replanning = Replanning(GOAL, self._make)
        self._waiter = threading.Thread(target=self._wait, daemon=True)
        self._waiter.start()

    def _make(self) -> Planned:
        assert self.let.wait(PATIENCE_S)
        if self.problem is not None:
            raise self.problem
        return PLANNED

    def _wait(self) -> None:
        try:
            self.replanning.wait()
            self.heard.append(None)
        except SentinelError as error:
            self.heard.append(error)

    def made(self) -> Planned | None:
        self.let.set()
        wait(self.replanning.ready)
        return self.replanning.planned()

    def told(self) -> SentinelError | None:
        self._waiter.join(PATIENCE_S)
        (heard,) = self.heard
        return heard


def test_a_rejected_request_keeps_its_reason() -> None:
    waiting = Waiting()
    assert waiting.made() is PLANNED
    waiting.replanning.reject("its caller has hung up")
    waiting.replanning.finish()
    told = waiting.told()
    assert told is not None
    assert told.message == "its caller has hung up"


def test_the_waiting_thread_goes_on_when_the_plan_is_sent() -> None:
    waiting = Waiting()
    assert not waiting.replanning.ready()
    assert waiting.made() is PLANNED
    assert not waiting.heard
    waiting.replanning.finish()
    assert waiting.told() is None


def test_the_waiting_thread_gets_the_planners_error() -> None:
    problem = SentinelError("usage", "too small a budget", "more")
    waiting = Waiting(problem)
    assert waiting.made() is None
    waiting.replanning.finish()
    assert waiting.told() is problem


def test_a_failed_request_does_not_wait_for_its_plan() -> None:
    waiting = Waiting()
    waiting.replanning.fail("process 1: detached")
    told = waiting.told()
    assert told is not None
    assert (told.code, told.message) == ("failed", "process 1: detached")
    waiting.let.set()
