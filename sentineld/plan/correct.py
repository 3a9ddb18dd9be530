# SPDX-License-Identifier: Apache-2.0
"""When what a plan counted upon turns out otherwise: keep it, or plan again with what was measured.

A plan counts upon a migration bandwidth and upon the times of its stretches. Both
are seen while it is carried out, by the simulator as by the daemon. Pure: from
counters to a decision. What does no harm is let be, and what chance can explain.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

import numpy as np

from sentineld.base.units import format_bytes
from sentineld.model.arrays import Floats
from sentineld.model.plan import Plan
from sentineld.model.profile import Profile
from sentineld.model.tiers import Tiers

RATE_TOLERANCE = 0.1
"""A bandwidth that is less by no more than this part is what the plan counted upon."""
FALL_TOLERANCE = 0.25
"""One that is less by more than this part is believed at once. What lies between has to last: a
mover that waits for its CPU now and then is as slow, and must not cost the better plan."""
RATE_GAIN = 0.1
"""One that is more by this part is worth another plan, if moves take their part of the time. It is
then others who have gone: no plan counts upon more than the machine promises."""
BUSY_SHARE = 0.25
"""Of the time: less moving than this gains nothing by going faster."""

STALL_SHARE = 0.005
"""Waits of less than this part of the time do no harm."""
LATE_SHARE = 0.05
"""Nor do fewer late moves than this part of them."""

EVIDENCE_SHARE = 1 / 8
"""Of the bytes that the plan moves in a step: fewer tell nothing of the bandwidth."""
RECENT_STEPS = 2
"""What harms is seen in the last steps, so that one step of it is enough."""
WINDOW_STEPS = 16
"""What is lost little by little, what could be gained, and what stretches take, is seen over so
many."""

DRIFT_MIN = 0.05
"""Times of stretches that are off by less than this part of the step are as profiled."""
DRIFT_NOISE = 2.0
"""They must also be off by so many times what their own scatter explains."""
RECHECK_STEPS = 256
"""Until what led to no other plan is looked at again."""

PATIENCE_STEPS = 8
PATIENCE_STEPS_MAX = 4096
EARNED_STEPS = 512
"""Steps under a plan that make up for the next correction."""

_MEDIAN_ERROR = 1.2533
"""Standard error of a median over that of a mean, and next to it the mean absolute deviation over
the standard one: of a normal distribution."""
_MEAN_DEVIATION = 0.798


@dataclass(frozen=True)
class Progress:
    """Counters that only rise. steps: that have begun under any plan. time_ns: passed. moved_bytes:
    both directions; busy_ns: what the mover needed for them. stall_ns: that the process waited for
    moves."""

    steps: int = 0
    time_ns: float = 0.0
    moved_bytes: float = 0.0
    busy_ns: float = 0.0
    stall_ns: float = 0.0
    late_moves: int = 0

    def since(self, before: Progress) -> Progress:
        """What was added."""
        return Progress(
            self.steps - before.steps,
            self.time_ns - before.time_ns,
            self.moved_bytes - before.moved_bytes,
            self.busy_ns - before.busy_ns,
            self.stall_ns - before.stall_ns,
            self.late_moves - before.late_moves,
        )


@dataclass(frozen=True)
class Correction:
    """Plan again, for these. cause: "migration" or "times". text: for people."""

    profile: Profile
    tiers: Tiers
    cause: str
    text: str


class Corrector:
    """Follows one training through its plans. entered() comes first; a correction is answered by
    left() and entered(), or by kept()."""

    def __init__(self, promised_bytes_per_s: float) -> None:
        """promised_bytes_per_s: what pages move at when nobody else moves any."""
        self._promised = promised_bytes_per_s
        self._patience = 0

    def entered(self, plan: Plan, profile: Profile, tiers: Tiers, progress: Progress) -> None:
        """A plan is live from now on, made from this profile for these tiers."""
        self._plan, self._profile, self._tiers = plan, profile, tiers
        self._began = progress
        # The first look in each step, and now.
        self._looks: deque[Progress] = deque([progress])
        self._last = progress
        self._timed_steps = -RECHECK_STEPS
        self._quiet_steps = self._patience
        self._done = self._kept = False
        self._step_bytes = float(plan.moves["bytes"].astype(np.float64).sum())

    def look(self, progress: Progress) -> Correction | None:
        """What to do about what has happened so far; while a correction is not answered,
        there is no other."""
        self._last = progress
        if progress.steps > self._looks[-1].steps:
            self._looks.append(progress)
        while len(self._looks) > 1 and progress.steps - self._looks[1].steps >= WINDOW_STEPS:
            self._looks.popleft()
        if self._done or not self._step_bytes or self._lived() < self._quiet_steps:
            return None
        rate = self._slow(self._since(RECENT_STEPS), FALL_TOLERANCE)
        window = self._since(WINDOW_STEPS)
        if rate is None and window.steps >= WINDOW_STEPS:
            rate = self._slow(window, RATE_TOLERANCE) or self._gained(window)
        return None if rate is None else self._migration(rate)

    @property
    def wants_times(self) -> bool:
        """Moves come late or are waited for, and it is not the bandwidth: what stretches take would
        tell whether it is chance."""
        recent = self._since(RECENT_STEPS)
        return (
            not self._done
            and self._step_bytes > 0
            and self._lived() >= max(RECENT_STEPS, self._quiet_steps)
            and self._lived() - self._timed_steps >= RECHECK_STEPS
            and self._harmed(recent)
            and self._slow(recent, RATE_TOLERANCE) is None
        )

    @property
    def undecided(self) -> bool:
        """Whether more steps like those seen may still lead to a correction."""
        open_ = not (self._done or self._kept) and self._step_bytes > 0
        return open_ and self._lived() < max(WINDOW_STEPS, self._quiet_steps + 1)

    def timed(self, times_ns: Floats) -> Correction | None:
        """times_ns: (N, S), what the stretches of N steps took without waits and slow accesses.

        Steps that are slower as a whole are no reason: their plan has but more time for its moves.
        One that counts upon that time is bad for as long as they are fast again.
        """
        self._timed_steps = self._lived()
        assumed = self._profile.stretches["time_ns"].astype(np.float64)
        whole = max(float(assumed.sum()), 1.0)
        found = np.median(times_ns, axis=0)
        slower = max(float(found.sum()) / whole, 1.0)
        times_ns, found = times_ns / slower, found / slower
        drift = float(np.abs(found - assumed).sum()) / whole
        error = (
            times_ns.std(axis=0, ddof=1) / np.sqrt(len(times_ns)) if len(times_ns) > 1 else found
        )
        chance = _MEDIAN_ERROR * _MEAN_DEVIATION * float(error.sum()) / whole
        if drift <= DRIFT_MIN + DRIFT_NOISE * chance:
            return None
        stretches = self._profile.stretches.copy()
        stretches["time_ns"] = np.rint(np.maximum(found, 0.0)).astype(np.uint64)
        self._done = True
        return Correction(
            replace(self._profile, stretches=stretches),
            self._tiers,
            "times",
            f"stretches take other times than profiled, {drift:.0%} of the step in all",
        )

    def kept(self) -> None:
        """No better plan came of the correction: this one stays."""
        self._kept = True
        self._done = False
        self._quiet_steps = self._lived() + RECHECK_STEPS

    def _migration(self, rate: float) -> Correction:
        self._done = True
        counted = self._tiers.migration_bytes_per_s
        return Correction(
            self._profile,
            replace(self._tiers, migration_bytes_per_s=rate),
            "migration",
            f"pages move at {format_bytes(round(rate))}/s, not {format_bytes(round(counted))}/s",
        )

    def left(self) -> None:
        """The plan is left for a corrected one: the next correction comes later, the sooner this
        one came."""
        if self._lived() >= EARNED_STEPS:
            self._patience = 0
        else:
            doubled = max(2 * self._patience, PATIENCE_STEPS)
            self._patience = min(doubled, PATIENCE_STEPS_MAX)

    def _lived(self) -> int:
        return self._last.steps - self._began.steps

    def _since(self, steps: int) -> Progress:
        """What happened in the last steps, the one that goes on not counted among them; in more of
        them where looks are further apart."""
        first = self._last.steps - steps
        before = next((look for look in reversed(self._looks) if look.steps <= first), None)
        return self._last.since(before or self._looks[0])

    def _rate(self, passed: Progress) -> float | None:
        """Bytes per second; None: too few moved to tell."""
        if passed.moved_bytes < EVIDENCE_SHARE * self._step_bytes or passed.busy_ns <= 0:
            return None
        return passed.moved_bytes / passed.busy_ns * 1e9

    def _slow(self, passed: Progress, tolerance: float) -> float | None:
        """The bandwidth, if it is less by more than this part than counted upon, and did harm."""
        rate = self._rate(passed)
        least = self._tiers.migration_bytes_per_s * (1 - tolerance)
        return rate if rate is not None and rate < least and self._harmed(passed) else None

    def _gained(self, passed: Progress) -> float | None:
        """The bandwidth, no more than promised, if it is worth another plan."""
        rate = min(self._rate(passed) or 0.0, self._promised)
        more = rate > self._tiers.migration_bytes_per_s * (1 + RATE_GAIN)
        return rate if more and passed.busy_ns > BUSY_SHARE * passed.time_ns else None

    def _harmed(self, passed: Progress) -> bool:
        moves = len(self._plan.moves) * max(passed.steps, 1)
        stalled = passed.stall_ns > STALL_SHARE * passed.time_ns
        return stalled or passed.late_moves > LATE_SHARE * moves
