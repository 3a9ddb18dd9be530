# SPDX-License-Identifier: Apache-2.0
"""Scans a session's processes at intervals, so that the temperatures of its units are known."""

from __future__ import annotations

import time

from sentineld.base.errors import SentinelError
from sentineld.heat.keeping import Keeping
from sentineld.heat.looking import WINDOW_S, Looking
from sentineld.heat.memory import SessionMemory
from sentineld.host.swap import fault_s
from sentineld.model.records import PAGE_BYTES
from sentineld.plan.division import Curve
from sentineld.policies.temperature.curve import curve_of_rates
from sentineld.policies.temperature.heat import RETURN_WEIGHT, Heat, Sample
from sentineld.policies.temperature.pacing import Pacing

INTERVAL_S_MIN, INTERVAL_S_MAX = 1.0, 60.0
"""Limits on the interval between scans."""
WARM_UP_SCANS = 4
"""Scans after which the temperatures are known: until then, all units look alike."""
BUSY_S_MAX = 20.0
"""Time limit for waiting in a scan until DAMON is free. A training that is profiled can use DAMON
for much longer."""
BUSY_SCANS_MAX = 6
"""After this number of scans that waited for DAMON in vain, the session does not wait for further
scans before it pages out: a training that uses DAMON may itself wait until this session releases
memory."""
FAILURES_MAX = 3
"""After accessed bits have been read, this number of failures in a row count as temporary."""
SAMPLES_MAX = 1024
"""Maximum number of pages that one scan samples. A larger number makes a scan take more CPU
time."""


class Scanning:
    """Carries out one scan at a time: walks the page tables, and looks at accessed bits during a
    window (see looking.py)."""

    def __init__(
        self,
        memory: SessionMemory,
        keeping: Keeping,
        heat: Heat,
        looking: Looking,
        cpu_share: float,
    ) -> None:
        """cpu_share: see Pacing."""
        self._memory = memory
        self._keeping = keeping
        self._heat = heat
        self._looking = looking
        self._pacing = Pacing(cpu_share, INTERVAL_S_MIN, INTERVAL_S_MAX)
        self._sample: Sample | None = None
        self._began_s = 0.0  # when the last scan began
        self._ended_s = time.monotonic()  # when the last scan ended
        self._spacing_s = INTERVAL_S_MIN  # mean time between the ends of two scans
        self._busy_scans = 0  # scans that waited for DAMON in vain
        self._failures = 0  # other failures to read accessed bits, in a row
        self._scan_cpu_s = 0.0  # CPU time of the current scan
        self.scans = 0
        """Scans that have updated the temperatures of all units."""
        self.cpu_s = 0.0
        """CPU time of all scans."""
        self.observed_by = ""
        """damon, or swap-ins if accessed bits cannot be read. Empty until this is known."""

    @property
    def interval_s(self) -> float:
        """Time from the beginning of a scan to that of the next one."""
        return self._pacing.interval_s

    @property
    def warm(self) -> bool:
        """Whether there were enough scans (WARM_UP_SCANS) for the temperatures to be known. Also
        true if only swap-ins can be observed, because further scans would not help, and after
        BUSY_SCANS_MAX scans that waited for DAMON in vain."""
        return (
            self.scans >= WARM_UP_SCANS
            or self.observed_by == "swap-ins"
            or self._busy_scans >= BUSY_SCANS_MAX
        )

    def curve(self) -> Curve:
        """The predicted slowdown of the processes as a function of their memory, computed from the
        scans so far."""
        seen = self.observed_by == "damon"
        rates, pages = self._heat.fault_rates(WINDOW_S, self._spacing_s, seen)
        return curve_of_rates(rates, pages, fault_s(), self._keeping.unlisted_bytes)

    def turn(self, budget_pages: int) -> bool:
        """Begin a scan if one is due, or end the scan whose window is over; returns whether a scan
        has ended. Raises ProcessLookupError or OSError."""
        began_s = time.thread_time()
        ended = False
        if self._sample is not None:
            ended = self._end(self._sample, budget_pages)
        elif time.monotonic() >= self._began_s + self.interval_s:
            self._began_s = time.monotonic()
            self._keeping.walk(resize=True)
            self._sample = self._heat.begin(SAMPLES_MAX)
            pages = self._sample.pages
            self._looking.begin(self._memory.frame_reader(pages), len(pages), BUSY_S_MAX)
        self._count(time.thread_time() - began_s)
        if ended:
            self._pacing.note(self._scan_cpu_s)
            self._scan_cpu_s = 0.0
        return ended

    def _count(self, cpu_s: float) -> None:
        self.cpu_s += cpu_s
        self._scan_cpu_s += cpu_s

    def _end(self, sample: Sample, budget_pages: int) -> bool:
        look = self._looking.result()
        if look is None:
            return False
        self._sample = None
        now_s = time.monotonic()
        # In this mean, the latest scan has the same weight as in the mean number of pages that come
        # back from swap between two scans (policies/temperature/heat.py).
        self._spacing_s += RETURN_WEIGHT * (now_s - self._ended_s - self._spacing_s)
        self._ended_s = now_s
        # The units count a page once for each process that maps it, so the budget has to grow by
        # the repeated counts.
        budget_pages += self._memory.repeated_bytes // PAGE_BYTES
        self._count(look.cpu_s)
        if look.problem is None:
            self._heat.end(sample, look.accessed, budget_pages)
            self.observed_by = "damon"
            self._failures = 0
        elif self._is_temporary(look.problem):
            self._heat.end_missed(budget_pages)
            return True
        else:
            self._heat.end_unseen(budget_pages)
            self.observed_by = "swap-ins"
        self.scans += 1
        return True

    def _is_temporary(self, problem: SentinelError) -> bool:
        """Whether a further scan may be able to read accessed bits. Counts the problem."""
        if problem.code == "busy":
            self._busy_scans += 1
            return True
        self._failures += 1
        return self.observed_by == "damon" and self._failures <= FAILURES_MAX
