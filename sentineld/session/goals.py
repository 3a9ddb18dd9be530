# SPDX-License-Identifier: Apache-2.0
"""Makes the goal of an attach (policy, budget, terms) from a verb, a rule, an earlier goal or a
state file. Also makes the content of a state file from a goal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from sentineld.base.errors import SentinelError
from sentineld.base.units import FastBudget
from sentineld.machine.machine import Machine
from sentineld.plan.division import Terms
from sentineld.session.state import Saved
from sentineld.session.work.planning import Goal

TermChanges = Mapping[str, Any]
"""Fields of Terms that a caller sets or changes."""


class Attached(NamedTuple):
    """Names an attached process or group in messages."""

    title: str
    argument: str  # of sentinelctl detach

    @classmethod
    def process(cls, pid: int) -> Attached:
        """A single process."""
        return cls(f"process {pid}", str(pid))


def first_goal(
    machine: Machine, fast: FastBudget | None, policy: str | None, terms: TermChanges | None
) -> Goal:
    """The goal of a process or group that is not attached. fast, policy: None selects the
    configured value.

    If the daemon has a shared budget, a session without `fast` shares it. Raises SentinelError.
    """
    _require_one_kind(fast, terms)
    config = machine.config
    shares = terms or (fast is None and machine.shared is not None)
    return Goal(
        fast or FastBudget.parse(config.fast),
        policy or config.policy,
        Terms(**(terms or {})) if shares else None,
    )


def changed_goal(
    goal: Goal,
    target: Attached,
    fast: FastBudget | None,
    policy: str | None,
    terms: TermChanges | None,
) -> Goal:
    """The new goal of an attached process or group. fast, policy: None keeps the current value.

    Raises SentinelError, for example if `fast` is given although the session shares the shared
    budget.
    """
    _require_one_kind(fast, terms)
    if (terms and goal.terms is None) or (fast is not None and goal.terms is not None):
        raise SentinelError(
            "wrong-state",
            f"{target.title} has a budget of its own"
            if goal.terms is None
            else f"{target.title} shares the shared budget",
            f"detach it first: sentinelctl detach {target.argument}",
        )
    changed = goal.terms
    if terms and changed is not None:
        changed = replace(changed, **terms)
    return Goal(fast or goal.fast, policy or goal.policy, changed)


def saved_goal(machine: Machine, saved: Saved) -> Goal:
    """The goal that an earlier daemon saved. If the daemon no longer has a shared budget, the
    session keeps its share as a budget of its own. Raises SentinelError."""
    terms = saved.terms if machine.shared is not None else None
    # Only a share of the shared budget can be 0 bytes. FastBudget.parse() refuses 0 bytes.
    fast = FastBudget(None, 0) if saved.fast == "0" else FastBudget.parse(saved.fast)
    return Goal(fast, saved.policy, terms)


def to_save(machine: Machine, goal: Goal, rule: str) -> Saved:
    """The content of a session's state file, without plans. rule: see Saved."""
    substrate = machine.substrate
    return Saved(
        str(goal.fast),
        goal.policy,
        substrate.emulated,
        substrate.paged,
        machine.nodes(),
        terms=goal.terms,
        rule=rule,
    )


def _require_one_kind(fast: FastBudget | None, terms: TermChanges | None) -> None:
    if fast is not None and terms:
        raise SentinelError(
            "usage",
            "a session with a budget of its own has no weight, minimum or maximum",
            "leave out --fast, or leave out --weight, --min and --max",
        )
