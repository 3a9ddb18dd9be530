# SPDX-License-Identifier: Apache-2.0
"""Interfaces of the four kinds of policies: planned, reactive, hardware and rewriting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from sentineld.model.arrays import Floats, Integers, Mask
from sentineld.model.plan import Plan
from sentineld.model.profile import Profile
from sentineld.model.tiers import Tiers


class Policy(Protocol):
    """Makes a plan from a profile. The plan depends only on the arguments of plan(), unless a time
    limit ends a solver's search."""

    name: str
    charges_budget: bool
    """Whether the policy's plans stay within the budget. Plans of baselines, reactive policies and
    hardware policies may exceed it."""

    def plan(self, profile: Profile, tiers: Tiers, budget_bytes: int) -> Plan:
        """Make the plan of a step.

        budget_bytes: fast memory for the tensor pages of the heap and the arena. Raises
        SentinelError if no plan fits the budget.
        """


def fast_pages(policy: Policy, plan: Plan, page_bytes: int) -> int | None:
    """The number of fast pages to which the simulator and emulated tiers limit a plan.

    Returns None (unlimited) for baselines that ignore the budget and place the heap in fast memory.
    Such a baseline shows the step time without a limit on fast memory.
    """
    if not policy.charges_budget and plan.layout.heap_tier == 0:
        return None
    return plan.budget_bytes // page_bytes


@dataclass(frozen=True)
class Observation:
    """The input of one tick of a reactive policy: the state of C cells.

    A cell is a range of pages that is observed as a unit.
    """

    now_ns: float  # time since the training began
    stretch: int  # the stretch that has just ended
    accesses: Floats  # (C,): accesses per page of the cell since the previous tick
    written: Mask  # (C,): whether the cell was written to since the previous tick
    fast: Integers  # (C,): resident pages on the fast tier
    slow: Integers  # (C,): resident pages on the slow tier
    free_pages: int  # free pages of the fast tier
    capacity_pages: int  # size of the fast tier
    move_pages: int  # number of pages that can be moved until the next tick
    # (2,): mean latencies of the page accesses to the fast and to the slow tier since the previous
    # tick, as simulate/loaded_latency.py derives them from the timing model
    latencies_ns: Floats


class MoveRequest(NamedTuple):
    """A request to move some pages of a cell."""

    cell: int
    tier: int  # destination
    pages: int  # number of pages


class Reactor(Protocol):
    """The state of a reactive policy for one process."""

    interval_ns: float
    """Time between ticks. A tick happens at the first boundary at which this time has passed since
    the previous tick. Requests that are not carried out before the next tick are discarded."""

    def tick(self, observation: Observation) -> Sequence[MoveRequest]:
        """Return the moves to make now.

        All demotions run before the first promotion. Demotions run in the order of the list, and so
        do promotions.
        """


@runtime_checkable
class DelayingReactor(Reactor, Protocol):
    """A reactor whose observation delays the training, for example by page faults."""

    def delay_ns(self) -> float:
        """The time by which the observation delayed the accesses that the last tick observed."""


@runtime_checkable
class Reactive(Policy, Protocol):
    """A policy that moves pages in response to observed accesses, as kernels do.

    The plan is a layout without moves. Reactive policies run in the simulator only. They need the
    accesses of all steps, but the accesses of a managed process are not sampled continuously.
    """

    def reactors(self, profile: Profile) -> Sequence[tuple[str, Reactor]]:
        """(description, new reactor) for each value of the policy's parameter sweep."""


class HardwareStep(NamedTuple):
    """The cost of a steady step on hardware that manages fast memory as a cache."""

    extra_ns: float  # how much longer the step takes than with all memory fast
    filled_bytes: int  # bytes copied into fast memory
    written_back_bytes: int  # bytes copied from fast memory to slow memory


@runtime_checkable
class Hardware(Policy, Protocol):
    """Placement by hardware without a software policy. The plan is a layout without moves."""

    def steady_step(
        self, plan: Plan, profile: Profile, tiers: Tiers, budget_bytes: int
    ) -> HardwareStep:
        """The cost of a step in the steady state."""


class Rewritten(NamedTuple):
    """A step that a policy has changed."""

    profile: Profile
    notes: tuple[str, ...]  # texts that describe the changes


@runtime_checkable
class Rewriting(Policy, Protocol):
    """A policy that also changes the work of a step, for example by computing tensors again.

    plan() plans the changed step. Rewriting policies run in the simulator only, because the daemon
    cannot change a training's work.
    """

    def rewritten(self, profile: Profile, tiers: Tiers, budget_bytes: int) -> Rewritten:
        """The changed step. It has as many stretches as the given one. Raises SentinelError if no
        plan fits the budget."""

    def bound_seconds(self, profile: Profile, tiers: Tiers, budget_bytes: int) -> float:
        """A lower bound, in seconds, on the time of a steady step, for any placement of the pages,
        whether or not the changes of rewritten() are made.

        profile: the step before the change.
        """
