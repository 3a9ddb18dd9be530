# SPDX-License-Identifier: Apache-2.0
"""Plan in child processes, so that the daemon stays small and responsive.

The child processes are limited in number, memory and CPU priority. Users take turns.
"""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import sentineld
from sentineld.base.errors import SentinelError
from sentineld.base.log_events import LogEvent, about
from sentineld.model.plan import Plan
from sentineld.model.profile import Profile
from sentineld.model.tiers import Tiers
from sentineld.plan.correct import Correction
from sentineld.plan.spare import Spare, measures_moves
from sentineld.planner.code_stamp import AT_START, code_stamp
from sentineld.planner.requests import (
    Answer,
    BoundRequest,
    PlanRequest,
    ReplanRequest,
    Request,
    SpareRequest,
    StepTimesRequest,
)
from sentineld.planner.turns import Turns
from sentineld.policies.bounds.fast_share import FastShareBound
from sentineld.policies.require import require

log = logging.getLogger(__name__)

FALLBACKS = ("auto", "sentinel+spill", "interleave")
"""Policies that are tried, in this order, if another policy cannot make a valid plan. `interleave`
makes a plan for every budget, and needs no scipy."""


class Planners:
    """Starts planning processes. Thread-safe.

    The methods with a parameter `uid` plan for the user with this ID, and block until the planning
    process has answered. Users with waiting requests are served in rotation. These methods, except
    spare(), may raise SentinelError.
    """

    def __init__(
        self,
        processes: int,
        memory_bytes: int,
        timeout_s: float,
        *,
        nice: int = 0,
        fallbacks: bool = True,
    ) -> None:
        """processes: limit on the number of planning processes that run at the same time. The other
        parameters: see set_limits()."""
        self._turns = Turns(processes)
        self.set_limits(memory_bytes, timeout_s, nice=nice, fallbacks=fallbacks)

    def set_limits(
        self, memory_bytes: int, timeout_s: float, *, nice: int, fallbacks: bool
    ) -> None:
        """Set the limits of the processes that are started from now on.

        memory_bytes: limit on the private memory of each process. timeout_s: limit on the run time
        of each process, not counting the wait for its turn. nice: nice level of each process,
        relative to the daemon's. fallbacks: whether plan() tries FALLBACKS."""
        self._memory_bytes = memory_bytes
        self._timeout_s = timeout_s
        self._nice = nice
        self._fallbacks = FALLBACKS if fallbacks else ()

    def plan(self, uid: int, name: str, profile: Profile, tiers: Tiers, budget_bytes: int) -> Plan:
        """Make a plan with the named policy and verify it.

        If this fails, make the plan with the first of the fallbacks that can make a valid plan. A
        note in the plan then says why the named policy failed. Raises the named policy's error if
        the fallbacks fail, too, or if the error's code is not "failed". If a precondition of all
        policies does not hold (see require()), for example because the profile has no accesses, no
        fallback is tried, and the error of require() is raised.
        """
        try:
            return self._answer(uid, PlanRequest(name, profile, tiers, budget_bytes))
        except SentinelError as error:
            if error.code != "failed":
                raise
            first = error
        require(profile, tiers, budget_bytes)
        for other in self._fallbacks:
            if other == name:
                continue
            try:
                plan = self._answer(uid, PlanRequest(other, profile, tiers, budget_bytes))
            except SentinelError as error:
                log.info("fallback %s failed, too: %s", other, error)
                continue
            log.warning(
                "%s made the plan, because %s failed: %s",
                other,
                name,
                first,
                extra=about(LogEvent.POLICY_FAILED),
            )
            note = f"{name} failed ({first.message}), so {other} made the plan"
            return replace(plan, notes=(*plan.notes, note))
        raise first

    def bound(self, uid: int, profile: Profile, tiers: Tiers, budget_bytes: int) -> FastShareBound:
        """Compute the fast-share bound for the budget and the tiers' migration bandwidth."""
        return self._answer(uid, BoundRequest(profile, tiers, budget_bytes))

    def step_times_ns(
        self,
        uid: int,
        name: str,
        profile: Profile,
        tiers: Tiers,
        budgets_bytes: Sequence[int],
        enough_ns: float,
    ) -> tuple[float, ...]:
        """Predict the time of a step for each of these budgets, under the plan that the named
        policy makes for that budget. May stop before the last budget; see StepTimesRequest."""
        budgets = tuple(budgets_bytes)
        return self._answer(uid, StepTimesRequest(name, profile, tiers, budgets, enough_ns))

    def plan_again(
        self, uid: int, correction: Correction, budget_bytes: int, live: Plan
    ) -> Plan | None:
        """Replan with the live plan's policy and the correction's profile and tiers.

        Returns None if the new plan's steps would not be faster than the live plan's by more than
        GAIN_MIN (simulate/loop.py).
        """
        profile, tiers = correction.profile, correction.tiers
        return self._answer(uid, ReplanRequest(live.policy, profile, tiers, budget_bytes, live))

    def spare(
        self, uid: int, profile: Profile, tiers: Tiers, budget_bytes: int, live: Plan
    ) -> Spare | None:
        """Make the spare plan for the live plan. Returns None if no spare plan could be entered
        (see measures_moves()), if the planning process fails (this is logged), or if
        SpareRequest.answer() returns None."""
        if not measures_moves(live, tiers):
            return None
        try:
            request = SpareRequest(live.policy, profile, tiers, budget_bytes, live)
            return self._answer(uid, request)
        except SentinelError as error:
            log.info("no spare plan: %s", error)
            return None

    def _answer(self, uid: int, request: Request[Answer]) -> Answer:
        with self._turns.turn(uid):
            answer = self._run(request)
        if isinstance(answer, SentinelError):
            raise answer
        return answer

    def _run(self, request: Request[Answer]) -> Answer | SentinelError:
        # The child would import the new files, and could misunderstand the daemon's request.
        if code_stamp() != AT_START:
            raise SentinelError(
                "wrong-state",
                "the files of sentineld have been replaced since the daemon started",
                "restart it; that of the unit: systemctl restart sentineld",
            )
        package_parent = str(Path(sentineld.__file__).parent.parent)
        paths = [package_parent, *filter(None, [os.environ.get("PYTHONPATH")])]
        limits = map(str, (os.getpid(), self._memory_bytes, self._nice))
        try:
            done = subprocess.run(
                # -P prevents imports from the working directory, where another user may have put
                # files.
                [sys.executable, "-P", "-m", "sentineld.planner.child", *limits],
                input=pickle.dumps(request),
                stdout=subprocess.PIPE,
                timeout=self._timeout_s,
                check=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            )
        except subprocess.TimeoutExpired:
            raise SentinelError(
                "failed", f"planning took over {self._timeout_s:g} s", "raise plan_timeout_s"
            ) from None
        except (OSError, subprocess.CalledProcessError) as error:
            raise SentinelError(
                "failed", f"the planning process failed: {error}", "see journalctl -u sentineld"
            ) from None
        answer: Answer | SentinelError = pickle.loads(done.stdout)
        return answer
