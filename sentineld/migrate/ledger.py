# SPDX-License-Identifier: Apache-2.0
"""Accounts of every byte that a plan's moves concern; safe to read from any thread."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field, replace
from typing import NamedTuple

KEPT_STEPS = 256


class Entry(NamedTuple):
    """What bytes are counted by.

    direction: "promote" (to the fastest tier) or "demote".
    reason: for moved bytes who asked ("plan", "heal", "initial"); for skipped ones
    "already-there", "absent", "superseded", "late", "paused", "no-room"; for failed
    ones "busy", "shared", "no-memory".
    result: "moved", "skipped" or "failed".
    """

    direction: str
    reason: str
    result: str


@dataclass(frozen=True)
class StepTotals:
    """One step's moves. Bytes and ns; late_bytes were moved after their deadline."""

    step: int
    promoted_bytes: int = 0
    demoted_bytes: int = 0
    late_bytes: int = 0
    cancelled_bytes: int = 0
    failed_bytes: int = 0
    late_moves: int = 0
    call_ns: int = 0

    @property
    def moved_bytes(self) -> int:
        """Bytes moved, both ways."""
        return self.promoted_bytes + self.demoted_bytes


@dataclass
class Ledger:
    """All accounts of one live plan."""

    _totals: dict[Entry, int] = field(default_factory=dict)
    _steps: deque[StepTotals] = field(default_factory=lambda: deque(maxlen=KEPT_STEPS))
    _late_moves: int = 0
    _calls: int = 0
    _paced_bytes: int = 0
    _paced_ns: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin_step(self, step: int) -> None:
        """What follows belongs to this step."""
        with self._lock:
            if not self._steps or self._steps[-1].step != step:
                self._steps.append(StepTotals(step))

    def moved(self, direction: str, reason: str, size: int, late: bool) -> None:
        """Bytes that have moved."""
        with self._lock:
            self._add(Entry(direction, reason, "moved"), size)
            totals = self._current()
            self._steps[-1] = replace(
                totals,
                promoted_bytes=totals.promoted_bytes + (size if direction == "promote" else 0),
                demoted_bytes=totals.demoted_bytes + (size if direction == "demote" else 0),
                late_bytes=totals.late_bytes + (size if late else 0),
            )

    def skipped(self, direction: str, reason: str, size: int) -> None:
        """Bytes that were not moved because there was no need, no room or no time."""
        with self._lock:
            self._add(Entry(direction, reason, "skipped"), size)
            if reason in ("late", "superseded"):
                totals = self._current()
                self._steps[-1] = replace(totals, cancelled_bytes=totals.cancelled_bytes + size)

    def failed(self, direction: str, reason: str, size: int) -> None:
        """Bytes that the kernel would not move."""
        with self._lock:
            self._add(Entry(direction, reason, "failed"), size)
            totals = self._current()
            self._steps[-1] = replace(totals, failed_bytes=totals.failed_bytes + size)

    def late_move(self) -> None:
        """A move went on, or was given up, after its deadline."""
        with self._lock:
            self._late_moves += 1
            totals = self._current()
            self._steps[-1] = replace(totals, late_moves=totals.late_moves + 1)

    def call(self, duration_ns: int) -> None:
        """Time spent in one move_pages call."""
        with self._lock:
            self._calls += 1
            totals = self._current()
            self._steps[-1] = replace(totals, call_ns=totals.call_ns + duration_ns)

    def paced(self, size: int, duration_ns: int) -> None:
        """Bytes of a batch so large that the time it took tells the bandwidth."""
        with self._lock:
            self._paced_bytes += size
            self._paced_ns += duration_ns

    def totals(self) -> dict[Entry, int]:
        """Bytes by entry since the plan became live."""
        with self._lock:
            return dict(self._totals)

    def steps(self) -> tuple[StepTotals, ...]:
        """The latest steps, oldest first; the last one may still be going on."""
        with self._lock:
            return tuple(self._steps)

    def step(self, step: int) -> StepTotals:
        """One step's totals; zeros for a step that is not known (any more)."""
        found = (totals for totals in self.steps() if totals.step == step)
        return next(found, StepTotals(step))

    @property
    def late_moves(self) -> int:
        """Moves that passed their deadline."""
        return self._late_moves

    @property
    def calls(self) -> int:
        """move_pages calls."""
        return self._calls

    def pace(self) -> tuple[int, int]:
        """(bytes, ns) of all large batches: what the bandwidth is known from."""
        with self._lock:
            return self._paced_bytes, self._paced_ns

    def moved_bytes(self, direction: str | None = None) -> int:
        """Bytes moved since the plan became live, in one direction or both."""
        return sum(
            size
            for entry, size in self.totals().items()
            if entry.result == "moved" and direction in (None, entry.direction)
        )

    def _add(self, entry: Entry, size: int) -> None:
        self._totals[entry] = self._totals.get(entry, 0) + size

    def _current(self) -> StepTotals:
        if not self._steps:
            self._steps.append(StepTotals(0))
        return self._steps[-1]
