# SPDX-License-Identifier: Apache-2.0
"""A planning goal as text, and the assumptions of a plan that is made for it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from sentineld.base.units import FastBudget
from sentineld.session.live.shapes import Shape
from sentineld.session.work.planning import Goal, PlanInput, planned_for
from tests.unit.plan.toys import PAGE, toy_plan, toy_profile, two_tiers


@pytest.mark.parametrize("fast", ["30%", "1048576"])
def test_a_goal_as_text(fast: str) -> None:
    assert str(Goal(FastBudget.parse(fast), "auto")) == f"policy auto, fast {fast}"


@pytest.mark.parametrize("paged", [False, True])
def test_a_plan_has_the_figures_that_it_assumes(paged: bool) -> None:
    fast, slow = two_tiers(5e6).tiers
    tiers = replace(two_tiers(5e6), tiers=(fast, replace(slow, read_latency_ns=70e3)), paged=paged)
    asked: list[tuple[Any, ...]] = []

    def plan(*arguments: Any) -> Any:
        asked.append(arguments)
        return toy_plan()

    machine: Any = SimpleNamespace(
        budgets_of=lambda link: SimpleNamespace(require=lambda *_: None),
        substrate=SimpleNamespace(reserve_bytes=lambda budget_bytes: 2 * PAGE),
        planners=SimpleNamespace(plan=plan, spare=lambda *_: None),
    )
    link: Any = SimpleNamespace(uid=7)
    profile = toy_profile()
    given = PlanInput(Shape(1, ""), profile, profile, tiers, PAGE)
    goal = Goal(FastBudget.parse(str(9 * PAGE)), "auto")
    planned = planned_for(goal, given, machine, link)
    assert asked == [(7, "auto", profile, tiers, 6 * PAGE)]
    assert planned.budget_bytes == 9 * PAGE
    assert planned.fault_latency_ns == (70e3 if paged else None)
    assert planned.assumed_of(replace(two_tiers(1.0), paged=paged)).migration_bytes_per_s == 5e6
    if paged:
        idle = replace(tiers, tiers=(fast, slow))
        assert planned.assumed_of(idle) == tiers
