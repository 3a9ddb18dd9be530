# SPDX-License-Identifier: Apache-2.0
"""What a policy is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from sentineld.model.arrays import Floats, Integers
from sentineld.model.plan import Plan
from sentineld.model.profile import Profile
from sentineld.model.tiers import Tiers


class Policy(Protocol):
    """Makes a plan from a profile; a pure function of its arguments."""

    name: str
    charges_budget: bool
    """Whether its plans keep to the budget; the baselines don't."""

    def plan(self, profile: Profile, tiers: Tiers, budget_bytes: int) -> Plan:
        """Plan a step. budget_bytes: fast memory for tensor pages of heap and arena.

        Raises SentinelError if there is no plan within the budget.
        """


@runtime_checkable
class Tried(Policy, Protocol):
    """Leaves a choice to trial: variants of its plan that differ in waits alone run for some steps
    each, where moves come late, and the fastest is kept."""

    def variants(self, plan: Plan) -> Sequence[tuple[str, Plan]]:
        """What to try beside the plan itself, each with words for it."""


def fast_pages(policy: Policy, plan: Plan, page_bytes: int) -> int | None:
    """How many pages the fast tier has for a plan that is carried out where it could have any
    number: the simulator, emulated tiers. None: no end to them. A layout that keeps to no budget
    and asks for fast memory is there to say what no limit would do."""
    if not policy.charges_budget and plan.layout.heap_tier == 0:
        return None
    return plan.budget_bytes // page_bytes


@dataclass(frozen=True)
class Sight:
    """What a reactive policy sees of C ranges of pages (cells) when it is asked.

    now_ns: since the training began. accesses: to each page of a cell since it was asked before.
    fast, slow: pages of each cell on either tier, both 0 where there are none now. free_pages: of
    the fast tier, of capacity_pages. move_pages: how many pages can move until it is asked next.
    """

    now_ns: float
    accesses: Floats
    fast: Integers
    slow: Integers
    free_pages: int
    capacity_pages: int
    move_pages: int


class Wish(NamedTuple):
    """So many pages of a cell to a tier."""

    cell: int
    tier: int
    pages: int


class Reactor(Protocol):
    """A reactive policy at work on one process. interval_ns: it is asked at the first boundary
    after so long; what it wished for and was not moved by then is forgotten."""

    interval_ns: float

    def tick(self, sight: Sight) -> Sequence[Wish]:
        """What to move now: demotions first, each in the order of the list."""


@runtime_checkable
class Reactive(Policy, Protocol):
    """Moves pages by what it sees of them, as kernels do. Its plan is a layout without moves. In
    the simulator only: nobody samples pages all the time for a managed process."""

    def reactors(self, profile: Profile) -> Sequence[tuple[str, Reactor]]:
        """Its parameter sweep: a fresh reactor for each value, with words for it."""


class HardwareStep(NamedTuple):
    """A steady step of hardware: what it takes beyond the all-fast time, bytes filled into fast
    memory and written back from it."""

    extra_ns: float
    filled_bytes: int
    written_back_bytes: int


@runtime_checkable
class Hardware(Policy, Protocol):
    """No policy but what the machine does by itself. Its plan is a layout without moves."""

    def steady_step(
        self, plan: Plan, profile: Profile, tiers: Tiers, budget_bytes: int
    ) -> HardwareStep:
        """A step once they repeat themselves."""
