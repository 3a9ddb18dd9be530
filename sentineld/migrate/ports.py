# SPDX-License-Identifier: Apache-2.0
"""The interface of movers, and their inputs: PlannedStep and ProcessPorts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from sentineld.migrate.clock import Clock
from sentineld.migrate.ledger import Ledger
from sentineld.migrate.process_memory import Memory
from sentineld.model.plan import Plan, Space
from sentineld.model.profile import Profile
from sentineld.plan.by_layer import PageTiers
from sentineld.plan.expected import ExpectedStep, ahead_of_time, expected_step, useful_until
from sentineld.plan.stall_trial import Decisions

Result = TypeVar("Result")


@dataclass(frozen=True)
class PlannedStep:
    """A plan, and data about its steps, derived from the plan and the profile."""

    plan: Plan
    step: ExpectedStep
    useful_until: npt.NDArray[np.int64] | None = None
    """(M,): for each row of plan.moves, the number of boundaries from the move's own boundary until
    the move is useless; see expected.useful_until(). None: each move is useful until its
    deadline."""
    ahead: npt.NDArray[np.int64] | None = None
    """(M,): for each row of plan.moves, how many boundaries before its own boundary the move may
    begin; see expected.ahead_of_time(). None: no move runs ahead of time."""

    @classmethod
    def of(cls, plan: Plan, profile: Profile) -> PlannedStep:
        """Derive the data from a plan and its profile."""
        return cls(
            plan,
            expected_step(profile, plan.layout),
            useful_until(profile, plan),
            ahead_of_time(profile, plan),
        )


@dataclass(frozen=True)
class ProcessPorts:
    """Access to the process. The callables must not block."""

    pid: int
    memory: Memory
    spaces: Mapping[Space, tuple[int, int]]
    """(start address, bytes) of arena and heap."""
    publish: Callable[[int], None]
    """Tells the shim the last position up to which all moves that barriers wait for are complete;
    see Mover."""
    position: Callable[[], int] | None = None
    """Reads the shim's position between two batches; None: only Mover.notify() reports it."""
    wake_at: Callable[[int], None] = lambda _: None
    """Asks for a call of notify() when the process has reached a position. A later request replaces
    an earlier one. notify() may be called at other times, too."""
    unmanaged_bytes: Callable[[], int] = lambda: 0
    """Returns the tensor bytes outside heap and arena; they are charged to the budget too."""
    clock: Clock = field(default_factory=Clock)
    """Tells the time for stall trials (plan/stall_trial.py), and waits for the end of moves that
    `memory` only imitates; tests replace it with a virtual clock."""
    ended: Callable[[str], None] = lambda _: None
    """Called once from the mover's thread, with the reason, if an error stops the mover."""

    def wake_at_next_step(self, position: int) -> None:
        """Ask for a call of notify() when the step after that of `position` begins."""
        self.wake_at(((position >> 32) + 1) << 32)


class PlanMover(Protocol):
    """Carries out a live plan's moves. Mover moves the pages itself; with PagerMoves, the pager in
    the process moves them.

    fast_bytes(), by_tier(), page_tiers(), residency_known and ledger may be used from any thread.
    """

    @property
    def ledger(self) -> Ledger:
        """Counts of the plan's moves."""

    @property
    def done_position(self) -> int:
        """The position up to which all moves that the process may wait for are complete."""

    def enter(self) -> None:
        """Move persistent tensors to their initial tiers, or queue these moves. Raises
        ProcessLookupError or SentinelError."""

    def start(self, position: int) -> None:
        """Follow the process from this position (step << 32 | boundary) on."""

    def notify(self, position: int) -> None:
        """Report that the process has reached a position."""

    def pause(self) -> None:
        """Report that a step diverges from the plan."""

    def resume(self, position: int) -> None:
        """Report that the process follows the plan again, from this position on."""

    def watch(self, backend: PageBackend, begin: Callable[[], None]) -> None:
        """Call begin(), which arms pages. From then on, moves must not appear as accesses in the
        samples."""

    def unwatch(self, end: Callable[[], Result]) -> Result:
        """Call end(), which disarms all pages, and end the effect of watch(): from now on, moves
        need not take sampling into account. Returns the result of end()."""

    @property
    def gaps(self) -> int:
        """Counts the gaps in the watch: it grows by one when all watched pages are disarmed for a
        query, and by one when they are armed again. So it is odd during a gap. Accesses in a gap
        are missed, and nothing marks them. May be read from any thread."""

    @property
    def residency_known(self) -> bool:
        """Whether fast_bytes(), by_tier() and page_tiers() include the pages that were resident
        when the mover started."""

    def stall_decisions(self) -> Decisions:
        """The number of boundaries with each decision of the stall trials; see StallTrial."""

    def fast_bytes(self, barriers_hold: bool = True) -> int:
        """Fast bytes charged to the session. barriers_hold: whether the process waits at
        barriers."""

    def by_tier(self, barriers_hold: bool = True) -> list[int]:
        """Bytes of arena and heap by tier, without absent pages."""

    def page_tiers(self, barriers_hold: bool = True) -> PageTiers:
        """The tier of each page of arena and heap."""

    def stop(self) -> None:
        """Stop following the process. Pages stay where they are."""


class PageBackend(Protocol):
    """Arms pages for sampling. A move unarms pages, so disarm() precedes it and arm() follows."""

    def disarm(self, start: int, length_bytes: int) -> object:
        """Stop reporting accesses to the range's pages."""

    def arm(self, start: int, length_bytes: int) -> object:
        """Report accesses to the range's pages again."""
