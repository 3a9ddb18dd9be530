# SPDX-License-Identifier: Apache-2.0
"""How the goal of an attach (policy, budget, terms) is made and saved; test_driver.py tests
sessions with such goals."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sentineld.base.errors import SentinelError
from sentineld.base.units import FastBudget
from sentineld.config import Config
from sentineld.machine.machine import Machine
from sentineld.plan.division import Terms
from sentineld.session.goals import Attached, changed_goal, first_goal, saved_goal, to_save
from sentineld.session.work.planning import Goal
from tests.unit.plan.toys import two_tiers
from tests.unit.toyprocess import ToyPages, ToySubstrate

OWN = FastBudget.parse("30%")
CONFIG = Config(policy="sentinel", fast="10%")
TARGET = Attached.process(7)
SHARES = Goal(FastBudget(None, 4096), "static", Terms(2.0))


def machine(shared_fast: str = "") -> Machine:
    substrate = ToySubstrate(ToyPages())
    return Machine(replace(CONFIG, shared_fast=shared_fast), substrate, two_tiers(1e12), [])


def test_missing_values_are_the_configured_ones() -> None:
    configured = FastBudget.parse(CONFIG.fast)
    assert first_goal(machine(), None, None, None) == Goal(configured, "sentinel")
    assert first_goal(machine("50%"), None, None, None) == Goal(configured, "sentinel", Terms())
    assert first_goal(machine("50%"), OWN, "static", None) == Goal(OWN, "static")


def test_only_given_values_change() -> None:
    assert changed_goal(Goal(OWN, "static"), TARGET, None, "auto", None) == Goal(OWN, "auto")
    changed = changed_goal(SHARES, TARGET, None, None, {"least_bytes": 5})
    assert changed == replace(SHARES, terms=Terms(2.0, 5))
    with pytest.raises(SentinelError, match="process 7 shares the shared budget"):
        changed_goal(SHARES, TARGET, OWN, None, None)
    with pytest.raises(SentinelError, match="process 7 has a budget of its own"):
        changed_goal(Goal(OWN, "static"), TARGET, None, None, {"weight": 2.0})
    with pytest.raises(SentinelError, match="has no weight"):
        changed_goal(SHARES, TARGET, OWN, None, {"weight": 2.0})


@pytest.mark.parametrize("goal", [Goal(OWN, "static"), SHARES, SHARES.with_share(0)])
def test_a_saved_goal_is_restored(goal: Goal) -> None:
    with_shared = machine("50%")
    assert saved_goal(with_shared, to_save(with_shared, goal, "")) == goal


def test_without_a_shared_budget_a_share_becomes_a_budget() -> None:
    saved = to_save(machine("50%"), SHARES, "")
    assert saved_goal(machine(), saved) == replace(SHARES, terms=None)
