# SPDX-License-Identifier: Apache-2.0
"""The latency of a fault on paged tiers: decide when to correct the latency that plans assume.

While pages move, the read of a fault competes with the I/O of the moves, so a fault takes longer
than on an idle disk. The additional time depends on the plan. A plan that assumes slow faults
causes fewer faults, and these faults become faster. A plan that assumes fast faults causes more
faults, and these faults become slower. A session could therefore switch back and forth between two
plans. To prevent this, a lower latency is accepted only after many steps.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

from sentineld.model.tiers import Tiers
from sentineld.model.timing import FAULT_BYTES

WINDOW_STEPS = 16
"""Minimum number of steps over which the latency is measured."""
ENTERING_STEPS = 2
"""For this number of steps after a plan has become live, faults are not measured, because pages are
not yet on the tiers that the plan gives them."""
SHARE = 0.02
"""The latency is corrected if the total time of the faults differs from the time that the plan
assumes for them by more than this share of the steps' time."""
READS_MIN = 64
"""A measured latency counts only if it is the mean of at least this number of reads."""
LATENCY_MAX_NS = 50e6
"""Limit on the latency that a plan assumes, unless the latency of an idle disk is above this limit.
Longer latencies have other causes, such as a stopped process."""
RETRY_STEPS = 256
"""If no better plan was found for a measured latency, the latency is not corrected for this number
of steps. The number doubles each time that this happens under the same plan."""
FASTER_STEPS = 512
"""Minimum number of steps under a plan before a lower latency is accepted. The number doubles each
time that a plan for a lower latency becomes live."""
STEPS_MAX = 4096
"""Upper limit of the two numbers that begin at RETRY_STEPS and FASTER_STEPS and are doubled."""


@dataclass(frozen=True)
class FaultCounts:
    """Counters of a session. They do not decrease while a plan is live."""

    steps: int = 0  # number of steps begun
    time_ns: float = 0.0  # elapsed time
    faults: int = 0  # PagingCounts.faults
    reads: int = 0  # PagingCounts.fault_reads
    read_ns: float = 0.0  # PagingCounts.fault_read_ns


class FaultLatency:
    """Compares the latency that a training run's plans assume with the measured one.

    Call entered() first, then observe() in every step. After a plan has been made for the latency
    that wanted_ns() returned: if this plan goes live, call left() and then entered(); if the old
    plan stays, call kept().
    """

    def __init__(self, nominal: Tiers) -> None:
        """nominal: the tiers with the bandwidths and latencies of an otherwise idle machine."""
        self._nominal = nominal
        self._faster_steps = FASTER_STEPS

    def entered(self, tiers: Tiers, counts: FaultCounts) -> None:
        """Record that a plan for these tiers went live."""
        self._tiers, self._began_steps = tiers, counts.steps
        # The counters at the first observe() of each step. Entries that are at least WINDOW_STEPS
        # steps old are removed, except the newest of them.
        self._looks: deque[FaultCounts] = deque()
        self._retry_steps, self._from_steps = RETRY_STEPS, 0
        self._last = counts

    @property
    def assumed_ns(self) -> float:
        """The latency with which the measured latency is compared."""
        return self._tiers.tiers[1].read_latency_ns

    def observe(self, counts: FaultCounts) -> None:
        """Store the current values of the counters."""
        self._last = counts
        if self._age_steps() < ENTERING_STEPS:
            return
        if not self._looks or counts.steps > self._looks[-1].steps:
            self._looks.append(counts)
        while len(self._looks) > 1 and counts.steps - self._looks[1].steps >= WINDOW_STEPS:
            self._looks.popleft()

    def wanted_ns(self) -> float | None:
        """The measured latency if another plan should be made for it; else None."""
        counts = self._last
        if not self._known() or not self._looks or self._age_steps() < self._from_steps:
            return None
        before = self._looks[0]
        if counts.steps - before.steps < WINDOW_STEPS:
            return None
        found_ns = self._latency_ns(counts.reads - before.reads, counts.read_ns - before.read_ns)
        if found_ns is None:
            return None
        difference_ns = abs(found_ns - self.assumed_ns) * (counts.faults - before.faults)
        if difference_ns <= SHARE * (counts.time_ns - before.time_ns):
            return None
        if found_ns < self.assumed_ns and self._age_steps() < self._faster_steps:
            return None
        return found_ns

    def kept(self, latency_ns: float) -> None:
        """Record that there is no better plan for this latency. From now on, measured latencies are
        compared with this one, so that no other plan is made for the same latency."""
        self._tiers = with_fault_latency(self._tiers, latency_ns)
        self._from_steps = self._age_steps() + self._retry_steps
        self._retry_steps = min(2 * self._retry_steps, STEPS_MAX)

    def left(self, latency_ns: float) -> None:
        """Record that a plan for this latency replaces the live one."""
        if latency_ns < self.assumed_ns:
            self._faster_steps = min(2 * self._faster_steps, STEPS_MAX)

    def _age_steps(self) -> int:
        """Number of steps under the live plan."""
        return self._last.steps - self._began_steps

    def _known(self) -> bool:
        """Whether the latency of an idle disk is known."""
        slow = self._nominal.tiers[1] if self._nominal.paged else None
        return slow is not None and slow.read_bytes_per_s > 0 and slow.read_latency_ns > 0

    def _latency_ns(self, reads: int, read_ns: float) -> float | None:
        """The latency of a fault if this number of reads took this time in total; None if there
        were too few reads."""
        if reads < READS_MIN:
            return None
        nominal = self._nominal.tiers[1]
        transfer_ns = FAULT_BYTES * 1e9 / nominal.read_bytes_per_s
        found_ns = min(read_ns / reads - transfer_ns + nominal.wake_ns, LATENCY_MAX_NS)
        return max(found_ns, nominal.read_latency_ns)


def with_fault_latency(tiers: Tiers, latency_ns: float) -> Tiers:
    """A copy of paged tiers with this latency of a fault; see Tier.read_latency_ns."""
    fast, slow = tiers.tiers
    return replace(tiers, tiers=(fast, replace(slow, read_latency_ns=latency_ns)))


def fault_latency_of(tiers: Tiers) -> float | None:
    """The latency of a fault; None if the tiers are not paged."""
    return tiers.tiers[1].read_latency_ns if tiers.paged else None
