# SPDX-License-Identifier: Apache-2.0
"""A session has at most one thread that plans again, no matter how many callers hang up."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from sentineld.base.errors import SentinelError
from sentineld.base.units import FastBudget
from sentineld.session import requests
from sentineld.session.live.shapes import Planned
from sentineld.session.requests import Requests
from sentineld.session.work.planning import Goal
from sentineld.session.work.replanning import Replanning
from tests.unit.emulated import machine
from tests.unit.links import Linked
from tests.unit.waiting import PATIENCE_S, wait

GOAL = Goal(FastBudget.parse("30%"), "auto")


class Planning:
    """The requests of a session whose planning waits until `let` is set, and then fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(requests, "planned_for", self._plan)
        self.linked, self.let, self.begun = Linked(), threading.Event(), 0
        self.requests = Requests(self.linked.link, machine(), cast(Any, None))

    def _plan(self, *_: object) -> Planned:
        self.begun += 1
        assert self.let.wait(PATIENCE_S)
        raise SentinelError("failed", "no plan")

    def again(self) -> Replanning:
        return self.requests.plan_again(GOAL, cast(Any, None))


@pytest.fixture
def planning(monkeypatch: pytest.MonkeyPatch) -> Iterator[Planning]:
    made = Planning(monkeypatch)
    yield made
    made.let.set()
    made.linked.close()


@pytest.mark.parametrize(
    "abandon",
    [
        lambda planning, replanning: planning.requests.cancel(replanning),
        lambda planning, replanning: planning.requests.fail("detached"),
    ],
    ids=["cancelled", "failed"],
)
def test_an_abandoned_planning_must_end_before_the_next_one_begins(
    planning: Planning, abandon: Callable[[Planning, Replanning], object]
) -> None:
    replanning = planning.again()
    abandon(planning, replanning)
    for _ in range(3):
        with pytest.raises(SentinelError, match="for an earlier request") as refused:
            planning.again()
        assert refused.value.code == "busy"
    assert planning.requests.current is None
    planning.let.set()
    wait(replanning.ready)
    last = planning.again()
    wait(last.ready)
    assert planning.begun == 2


def test_a_planning_that_has_ended_does_not_delay_the_next_one(planning: Planning) -> None:
    planning.let.set()
    wait(planning.again().ready)
    planning.requests.finish()
    assert not planning.again().over(0)


def test_another_request_may_begin_while_an_abandoned_planning_runs(planning: Planning) -> None:
    planning.requests.cancel(planning.again())
    planning.requests.require_none()
