# SPDX-License-Identifier: Apache-2.0
"""Test-and-trial: decide by trials whether the process stalls at a boundary for late promotions.

An interval of policy `sentinel` can end with unfinished promotions although fast memory has room
for them (case 3 of the Sentinel paper, HPCA'21). At the interval's end, the process can either
stall until these promotions are done, or go on. If it goes on, it accesses the pages in slow memory
until they have been promoted. A trial measures both choices: the process stalls at the boundary in
one step and does not stall in the next. The faster choice is then kept. The boundaries are tried
one after another; during each trial, the decisions of all earlier trials apply.

A trial measures whole steps, from one arrival at the tried boundary to the next arrival there. The
reason is that the decision influences all stretches of the step: pages that arrive late delay later
moves.

This module only makes decisions. The mover and the simulator report each boundary that the process
reaches, and the time. Boundaries are counted since the first step: step * boundary_count +
boundary.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from sentineld.model.arrays import Integers, Mask
from sentineld.model.plan import Plan

SETTLING_STEPS = 2
"""Number of steps before the first trial, and before a trial is repeated. In these steps, pages
still move to the tiers that the plan gives them."""
STEPS_PER_BOUNDARY = 2
"""Number of steps that the trial of one boundary takes, as in the paper."""

TIE = 0.001
"""The process stalls only if stalling shortens the step by more than this share of the step's
time."""


class Decisions(NamedTuple):
    """The number of boundaries with each decision."""

    stall: int  # boundaries at which the process stalls
    leave: int  # boundaries at which the process does not stall
    undecided: int  # boundaries that have not been tried yet


def late_moves(plan: Plan) -> Mask:
    """(M,): which moves are late by plan: Plan.late, or all False if Plan.late is empty."""
    return plan.late if len(plan.late) else np.zeros(len(plan.moves), np.bool_)


def stall_boundaries(plan: Plan) -> Integers:
    """(K,), ascending: the boundaries that are tried. These are the deadlines of the promotions
    that are late by plan (Plan.late)."""
    found: Integers = np.unique(plan.moves["deadline"][late_moves(plan)]).astype(np.int64)
    return found


class StallTrial:
    """Decides, for each boundary at which a plan has late promotions, whether the process stalls
    there.

    Other threads may read `decisions`: each new decision replaces the object, and no object is
    modified.
    """

    def __init__(self, boundaries: Iterable[int], boundary_count: int) -> None:
        """boundaries: see stall_boundaries()."""
        self._left = sorted(boundaries)
        self._count = boundary_count
        self._stalls: dict[int, bool] = {}
        self.decisions = Decisions(0, 0, len(self._left))
        """The decisions so far."""
        self._ready = 0  # first boundary at which a trial may begin
        self._began_ns = 0.0  # time of the last arrival at the boundary that is tried
        self._stalled_ns: float | None = None
        # The boundary at which the process stalls in the current trial or, between trials, in the
        # next one.
        self._stalled_at: int | None = None
        self._now: int | None = None

    @property
    def undecided(self) -> bool:
        """Whether there is a boundary without a decision."""
        return bool(self._left)

    def stalls(self, boundary: int) -> bool:
        """Whether the process stalls at this boundary for late promotions."""
        decided = self._stalls.get(boundary % self._count)
        return boundary == self._stalled_at if decided is None else decided

    def passed(self, boundary: int, time_ns: float) -> None:
        """Report that the process has reached a boundary. Call this before the process waits
        there."""
        if not self._left:
            return
        if self._now is None or boundary != self._now + 1:
            self._restart(boundary)
        self._now = boundary
        if self._stalled_at is None:
            self._plan_stall(max(boundary + 1, self._ready))
        stalled_at = self._stalled_at
        assert stalled_at is not None
        if boundary == stalled_at:
            self._began_ns = time_ns
        elif boundary == stalled_at + self._count:
            self._stalled_ns, self._began_ns = time_ns - self._began_ns, time_ns
        elif boundary == stalled_at + 2 * self._count:
            assert self._stalled_ns is not None
            left_ns = time_ns - self._began_ns
            self._stalls[self._left.pop(0)] = self._stalled_ns < (1 - TIE) * left_ns
            stall = sum(self._stalls.values())
            self.decisions = Decisions(stall, len(self._stalls) - stall, len(self._left))
            self._stalled_at = None
            if self._left:
                self._plan_stall(boundary + 1)

    def interrupt(self) -> None:
        """Report that the process has not followed the plan since the last boundary."""
        self._now = self._stalled_at = None

    def _restart(self, boundary: int) -> None:
        """Postpone the next trial by SETTLING_STEPS, because the process has just begun to follow
        the plan, or follows it again after an interruption. A trial that is under way is
        repeated."""
        self._ready = boundary + SETTLING_STEPS * self._count
        self._stalled_at = None

    def _plan_stall(self, first: int) -> None:
        """Let the process stall at the first occurrence of the tried boundary that is not before
        boundary `first`."""
        self._stalled_at = first + (self._left[0] - first) % self._count
