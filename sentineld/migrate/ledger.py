# SPDX-License-Identifier: Apache-2.0
"""Byte counts of a plan's moves: moved, skipped and failed bytes. Thread-safe."""

from __future__ import annotations

import statistics
import threading
from collections import deque
from dataclasses import dataclass, field, replace
from typing import NamedTuple

KEPT_STEPS = 256
"""Number of steps whose totals are kept."""
STOPPED_NS = 500_000_000
STOPPED_OVER_MEDIAN = 8.0
"""If a batch took longer than STOPPED_NS, and its time per byte exceeds STOPPED_OVER_MEDIAN times
the median of the last batches, the mover was probably stopped during the batch, for example by
SIGSTOP. Such a batch says nothing about the bandwidth."""
LAST_BATCHES = 9


class Entry(NamedTuple):
    """The labels of a byte count."""

    direction: str
    """Either "promote" (to the fastest tier) or "demote"."""
    reason: str
    """For moved bytes, the origin of the move ("plan", "heal", "initial"); for skipped bytes,
    "already-there", "absent", "superseded", "late", "paused" or "no-room"; for failed bytes,
    "busy", "shared" or "no-memory"."""
    result: str
    """One of "moved", "skipped" and "failed"."""


@dataclass
class StepTotals:
    """Totals of the moves of one step."""

    step: int
    promoted_bytes: int = 0
    demoted_bytes: int = 0
    late_bytes: int = 0
    """Bytes that moved after their move's deadline."""
    cancelled_bytes: int = 0
    """Bytes skipped because their move was late or superseded."""
    failed_bytes: int = 0
    late_moves: int = 0
    """Number of late moves. A late move moved pages, or was cancelled, after its deadline."""
    call_ns: int = 0
    """Time spent in move_pages calls."""

    @property
    def moved_bytes(self) -> int:
        """Bytes moved in both directions."""
        return self.promoted_bytes + self.demoted_bytes


@dataclass
class Ledger:
    """The counts of one live plan."""

    _totals: dict[Entry, int] = field(default_factory=dict)
    _moved: dict[str, int] = field(default_factory=lambda: {"promote": 0, "demote": 0})
    _steps: deque[StepTotals] = field(default_factory=lambda: deque(maxlen=KEPT_STEPS))
    _late_moves: int = 0
    _calls: int = 0
    _paced_bytes: int = 0
    _paced_ns: int = 0
    _ns_per_byte: deque[float] = field(default_factory=lambda: deque(maxlen=LAST_BATCHES))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin_step(self, step: int) -> None:
        """Assign all further counts to this step."""
        with self._lock:
            if not self._steps or self._steps[-1].step != step:
                self._steps.append(StepTotals(step))

    def moved(self, direction: str, reason: str, size: int, late: bool) -> None:
        """Count bytes that have moved. late: whether they moved after their move's deadline."""
        with self._lock:
            self._add(Entry(direction, reason, "moved"), size)
            self._moved[direction] += size
            totals = self._current()
            if direction == "promote":
                totals.promoted_bytes += size
            else:
                totals.demoted_bytes += size
            if late:
                totals.late_bytes += size

    def skipped(self, direction: str, reason: str, size: int) -> None:
        """Count bytes that were not moved because there was no need, room or time."""
        with self._lock:
            self._add(Entry(direction, reason, "skipped"), size)
            if reason in ("late", "superseded"):
                self._current().cancelled_bytes += size

    def failed(self, direction: str, reason: str, size: int) -> None:
        """Count bytes that the kernel did not move."""
        with self._lock:
            self._add(Entry(direction, reason, "failed"), size)
            self._current().failed_bytes += size

    def late_move(self, count: int = 1) -> None:
        """Count late moves; see StepTotals.late_moves."""
        with self._lock:
            self._late_moves += count
            self._current().late_moves += count

    def call(self, duration_ns: int) -> None:
        """Count a move_pages call and its time."""
        with self._lock:
            self._calls += 1
            self._current().call_ns += duration_ns

    def paced(self, size: int, duration_ns: int) -> None:
        """Count a batch that is large enough to measure the bandwidth with. A batch is left out if
        the mover was probably stopped during the batch; see STOPPED_OVER_MEDIAN. The first two
        batches always count, because the median of fewer than three batches cannot show an outlier.
        size: more than 0."""
        with self._lock:
            took = duration_ns / size
            self._ns_per_byte.append(took)
            usual = statistics.median(self._ns_per_byte)
            if duration_ns > STOPPED_NS and took > STOPPED_OVER_MEDIAN * usual:
                return
            self._paced_bytes += size
            self._paced_ns += duration_ns

    def totals(self) -> dict[Entry, int]:
        """Bytes by entry since the plan became live."""
        with self._lock:
            return dict(self._totals)

    def steps(self) -> tuple[StepTotals, ...]:
        """The latest steps, oldest first; the last step may be unfinished."""
        with self._lock:
            return tuple(map(replace, self._steps))  # copies

    def step(self, step: int) -> StepTotals:
        """One step's totals; zeros if the step is not kept."""
        found = (totals for totals in self.steps() if totals.step == step)
        return next(found, StepTotals(step))

    @property
    def late_moves(self) -> int:
        """Number of late moves since the plan became live."""
        return self._late_moves

    @property
    def calls(self) -> int:
        """Number of move_pages calls since the plan became live."""
        return self._calls

    def large_batches(self) -> tuple[int, int]:
        """(bytes, ns) of all batches that paced() has counted, to compute the bandwidth from."""
        with self._lock:
            return self._paced_bytes, self._paced_ns

    def moved_bytes(self, direction: str | None = None) -> int:
        """Bytes moved since the plan became live, in one direction or both."""
        return sum(self._moved.values()) if direction is None else self._moved[direction]

    def _add(self, entry: Entry, size: int) -> None:
        self._totals[entry] = self._totals.get(entry, 0) + size

    def _current(self) -> StepTotals:
        if not self._steps:
            self._steps.append(StepTotals(0))
        return self._steps[-1]
