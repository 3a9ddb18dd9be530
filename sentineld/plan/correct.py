# SPDX-License-Identifier: Apache-2.0
"""Decide whether to replace a live plan because its assumptions do not match the measurements.

A plan assumes a migration bandwidth, the time of each stretch and, on paged tiers, the latency of a
fault. The daemon measures these values while the plan is live, except the bandwidth on paged tiers;
the simulator does not measure the latency. This module only makes decisions: the caller passes the
measured values and carries out the decisions. A small deviation is ignored, because random scatter
may explain it. A larger deviation is also ignored if it does no harm. Two kinds of harmless
deviation nevertheless justify a new plan, because that plan could be faster: the bandwidth has
risen far enough, or faults have become faster.
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
from sentineld.plan.fault_latency import FaultCounts, FaultLatency, with_fault_latency

RATE_TOLERANCE = 0.1
"""If the measured bandwidth is below the assumed one by at most this share, the drop is ignored."""
FALL_TOLERANCE = 0.25
"""If the measured bandwidth is below the assumed one by more than this share and this does harm
(STALL_SHARE, LATE_SHARE), the plan is corrected immediately. A smaller drop has to last for
WINDOW_STEPS steps. A small drop that is also short does not justify a correction: the mover may
only have waited for a CPU, and a plan that assumes less bandwidth has slower steps."""
RATE_GAIN = 0.1
"""If the measured bandwidth is above the assumed one by more than this share, the plan is
corrected, provided that the mover is busy (BUSY_SHARE). The bandwidth rises when other load ends. A
plan never assumes more than the nominal bandwidth."""
BUSY_SHARE = 0.25
"""A rise of the bandwidth is assumed to make a new plan faster only if the mover is busy for more
than this share of the time."""

STALL_SHARE = 0.005
"""The process's waits for moves do no harm if they take at most this share of the time."""
LATE_SHARE = 0.05
"""Late moves do no harm if they are at most this share of all moves."""

EVIDENCE_SHARE = 1 / 8
"""A measured bandwidth counts only if at least this share of the bytes that the plan moves in a
step was moved during the measurement."""
RECENT_STEPS = 2
"""Number of most recent steps that are checked for harmful deviations. The number is small, so that
one harmful step is enough for a correction."""
WINDOW_STEPS = 16
"""Number of most recent steps that are checked for rises and small drops of the bandwidth. The
times of stretches are measured over the same number of steps."""

DRIFT_MIN = 0.05
"""Deviations of the stretches' times are ignored if their sum is below this share of the step's
time."""
DRIFT_NOISE = 2.0
"""Random scatter alone also makes the times deviate. The deviations are ignored if their sum is at
most DRIFT_MIN plus this multiple of the sum that random scatter is expected to cause."""
RECHECK_STEPS = 256
"""Minimum number of steps between two comparisons of the stretches' times. If a correction led to
no new plan, the next correction also comes at least this number of steps later. Corrections of the
latency of faults have other rules; see fault_latency.py."""

PATIENCE_STEPS = 8
"""If a plan was corrected early (see EARNED_STEPS), the next plan has to be live for this number of
steps before the bandwidth and times that it assumes may be corrected. Each further early correction
doubles this minimum age."""
PATIENCE_STEPS_MAX = 4096
EARNED_STEPS = 512
"""The correction of a plan is early if the plan has been live for fewer steps than this. Any other
correction resets the minimum age to 0."""

_MEDIAN_ERROR = 1.2533
"""Normal distribution: standard error of the median divided by that of the mean."""
_MEAN_DEVIATION = 0.798
"""Normal distribution: mean absolute deviation divided by the standard deviation."""


@dataclass(frozen=True)
class Progress:
    """Counters of a session. They do not decrease while a plan is live."""

    steps: int = 0  # number of steps begun, under all plans
    time_ns: float = 0.0  # elapsed time
    # Bytes moved in either direction. The daemon counts only batches that are large enough to
    # measure the bandwidth.
    moved_bytes: float = 0.0
    busy_ns: float = 0.0  # time that the mover spent moving these bytes
    stall_ns: float = 0.0  # time that the process waited for moves
    late_moves: int = 0
    # The next three are 0 except on paged tiers; see PagingCounts.
    faults: int = 0
    fault_reads: int = 0
    fault_read_ns: float = 0.0

    def since(self, before: Progress) -> Progress:
        """The increase of each counter since an earlier state."""
        return Progress(
            self.steps - before.steps,
            self.time_ns - before.time_ns,
            self.moved_bytes - before.moved_bytes,
            self.busy_ns - before.busy_ns,
            self.stall_ns - before.stall_ns,
            self.late_moves - before.late_moves,
            self.faults - before.faults,
            self.fault_reads - before.fault_reads,
            self.fault_read_ns - before.fault_read_ns,
        )


@dataclass(frozen=True)
class Correction:
    """A request to replan with corrected assumptions."""

    profile: Profile
    tiers: Tiers
    # "migration": the bandwidth differs; "times": the times of stretches differ; "faults": the
    # latency of a fault differs
    cause: str
    text: str  # description of the cause, for logs and users


class Corrector:
    """Compares the assumptions of a training run's plans with measurements.

    Call entered() first. After a correction, call left() and entered() if a new plan goes live, or
    kept() if the old plan stays.
    """

    def __init__(self, nominal: Tiers) -> None:
        """nominal: the tiers with the bandwidths and latencies of an otherwise idle machine."""
        self._nominal = nominal
        self._patience = 0
        self._faults = FaultLatency(nominal)

    def entered(self, plan: Plan, profile: Profile, tiers: Tiers, progress: Progress) -> None:
        """Record that a plan, made from this profile for these tiers, went live."""
        self._plan, self._profile, self._tiers = plan, profile, tiers
        self._began = progress
        # The counters at entered() and at the first look() of each step. Entries that are at least
        # WINDOW_STEPS steps old are removed, except the newest of them.
        self._looks: deque[Progress] = deque([progress])
        self._last = progress
        self._timed_steps = -RECHECK_STEPS
        self._min_age_steps = self._patience
        self._pending = self._rejected = False
        self._faults.entered(tiers, _fault_counts(progress))
        self._pending_latency_ns: float | None = None  # see fault_latency.py
        self._step_bytes = float(plan.moves["bytes"].astype(np.float64).sum())

    def look(self, progress: Progress) -> Correction | None:
        """Evaluate the counters; return a correction if the bandwidth or the latency of faults
        justifies one.

        After a correction, return None until the caller has called entered() or kept().
        """
        self._last = progress
        self._faults.observe(_fault_counts(progress))
        if progress.steps > self._looks[-1].steps:
            self._looks.append(progress)
        while len(self._looks) > 1 and progress.steps - self._looks[1].steps >= WINDOW_STEPS:
            self._looks.popleft()
        if self._pending or not self._step_bytes:
            return None
        moves = self._look_at_moves() if self._age_steps() >= self._min_age_steps else None
        return moves or self._look_at_faults()

    @property
    def needs_times(self) -> bool:
        """Whether timed() should be called with measured times of stretches.

        The times are needed if moves are late or the process waits for moves, although the measured
        bandwidth is not too low.
        """
        recent = self._since(RECENT_STEPS)
        return (
            not self._pending
            and self._step_bytes > 0
            and self._age_steps() >= max(RECENT_STEPS, self._min_age_steps)
            and self._age_steps() - self._timed_steps >= RECHECK_STEPS
            and self._harmed(recent)
            and self._slow(recent, RATE_TOLERANCE) is None
        )

    @property
    def undecided(self) -> bool:
        """Whether the plan may still be corrected even if all further steps are like the previous
        ones.

        This is the case while the plan is younger than the measuring window (WINDOW_STEPS) or than
        the minimum age for a correction. It is not the case if a correction is pending or has been
        rejected, or if the plan has no moves.
        """
        open_ = not (self._pending or self._rejected) and self._step_bytes > 0
        return open_ and self._age_steps() < max(WINDOW_STEPS, self._min_age_steps + 1)

    def timed(self, times_ns: Floats) -> Correction | None:
        """Evaluate measured times of stretches; return a correction if they justify one.

        times_ns: (N, S), times that the stretches of N steps would take with all memory fast.

        If whole steps are slower than profiled, the times are first scaled down to the profiled
        time of the step. A uniform slowdown is no reason for a correction, because it only gives
        the moves more time, and a plan that relied on this additional time would be wrong once the
        slowdown ends.
        """
        self._timed_steps = self._age_steps()
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
        self._pending = True
        return Correction(
            replace(self._profile, stretches=stretches),
            self._tiers,
            "times",
            f"times of stretches differ from the profile by {drift:.0%} of the step",
        )

    def kept(self) -> None:
        """Record that the correction led to no better plan and the live plan stays."""
        self._pending = False
        latency_ns, self._pending_latency_ns = self._pending_latency_ns, None
        if latency_ns is not None:
            # Later corrections of the bandwidth or of times should also assume the measured
            # latency.
            self._tiers = with_fault_latency(self._tiers, latency_ns)
            self._faults.kept(latency_ns)
            return
        self._rejected = True
        self._min_age_steps = self._age_steps() + RECHECK_STEPS

    def _look_at_moves(self) -> Correction | None:
        rate = self._slow(self._since(RECENT_STEPS), FALL_TOLERANCE)
        window = self._since(WINDOW_STEPS)
        if rate is None and window.steps >= WINDOW_STEPS:
            rate = self._slow(window, RATE_TOLERANCE) or self._gained(window)
        return None if rate is None else self._migration(rate)

    def _look_at_faults(self) -> Correction | None:
        latency_ns = self._faults.wanted_ns()
        if latency_ns is None:
            return None
        self._pending, self._pending_latency_ns = True, latency_ns
        assumed_ns = self._faults.assumed_ns
        return Correction(
            self._profile,
            with_fault_latency(self._tiers, latency_ns),
            "faults",
            f"the latency of a fault is {latency_ns / 1000:.0f} us, not {assumed_ns / 1000:.0f} us",
        )

    def _migration(self, rate: float) -> Correction:
        self._pending = True
        assumed = self._tiers.migration_bytes_per_s
        return Correction(
            self._profile,
            replace(self._tiers, migration_bytes_per_s=rate),
            "migration",
            f"migration bandwidth is {format_bytes(round(rate))}/s,"
            f" not {format_bytes(round(assumed))}/s",
        )

    def left(self) -> None:
        """Record that a corrected plan replaces the live one. Set the minimum age at which the
        new plan may be corrected."""
        if self._pending_latency_ns is not None:
            self._faults.left(self._pending_latency_ns)
        if self._age_steps() >= EARNED_STEPS:
            self._patience = 0
        else:
            doubled = max(2 * self._patience, PATIENCE_STEPS)
            self._patience = min(doubled, PATIENCE_STEPS_MAX)

    def _age_steps(self) -> int:
        """Number of steps under the live plan."""
        return self._last.steps - self._began.steps

    def _since(self, steps: int) -> Progress:
        """The increase of the counters in the last `steps` complete steps and the current one.

        The increase covers more steps if look() is called less than once per step. It covers fewer
        steps if the plan has been live for fewer than `steps` steps.
        """
        first = self._last.steps - steps
        before = next((look for look in reversed(self._looks) if look.steps <= first), None)
        return self._last.since(before or self._looks[0])

    def _rate(self, passed: Progress) -> float | None:
        """Measured bandwidth in bytes per second; None if too few bytes were moved
        or no time was measured."""
        if passed.moved_bytes < EVIDENCE_SHARE * self._step_bytes or passed.busy_ns <= 0:
            return None
        return passed.moved_bytes / passed.busy_ns * 1e9

    def _slow(self, passed: Progress, tolerance: float) -> float | None:
        """The measured bandwidth if it is below the assumed one by more than the tolerance, and if
        waits or late moves do harm; else None."""
        rate = self._rate(passed)
        least = self._tiers.migration_bytes_per_s * (1 - tolerance)
        return rate if rate is not None and rate < least and self._harmed(passed) else None

    def _gained(self, passed: Progress) -> float | None:
        """The measured bandwidth, limited to the nominal one, if its rise justifies a replan
        (RATE_GAIN, BUSY_SHARE); else None."""
        rate = min(self._rate(passed) or 0.0, self._nominal.migration_bytes_per_s)
        more = rate > self._tiers.migration_bytes_per_s * (1 + RATE_GAIN)
        return rate if more and passed.busy_ns > BUSY_SHARE * passed.time_ns else None

    def _harmed(self, passed: Progress) -> bool:
        """Whether the waits for moves or the number of late moves exceed their thresholds."""
        moves = len(self._plan.moves) * max(passed.steps, 1)
        stalled = passed.stall_ns > STALL_SHARE * passed.time_ns
        return stalled or passed.late_moves > LATE_SHARE * moves


def _fault_counts(progress: Progress) -> FaultCounts:
    """The counters that FaultLatency needs."""
    return FaultCounts(
        progress.steps,
        progress.time_ns,
        progress.faults,
        progress.fault_reads,
        progress.fault_read_ns,
    )
