# SPDX-License-Identifier: Apache-2.0
"""Rates of a session's counters between two readings, and step times from the recent readings.

Times are those of the daemon's clock, so the time that an answer takes does not matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sentineld.top.readings import Reading, SessionReading

STEP_WINDOW_NS = 5_000_000_000
"""The step time is the mean over this time, or over one step if a step takes longer."""


@dataclass(frozen=True)
class Rates:
    """Rates of one session; None: not known yet."""

    promoted_bytes_per_s: float | None = None
    demoted_bytes_per_s: float | None = None
    late_moves_per_s: float | None = None
    step_ns: float | None = None
    idle_ns: int = 0
    """The time since a step was last seen to end."""


class Mark(NamedTuple):
    """Time of the first reading in which a session's step counter had the value `step`."""

    time_ns: int
    step: int


def move_rates(before: SessionReading, now: SessionReading, elapsed_ns: int) -> Rates:
    """Rates between two readings of a session.

    The rates are unknown if no time has passed. They are also unknown if a counter has decreased,
    which shows that the process has a new session.
    """
    pairs = (
        (before.promoted_bytes, now.promoted_bytes),
        (before.demoted_bytes, now.demoted_bytes),
        (before.late_moves, now.late_moves),
    )
    if elapsed_ns <= 0 or any(after < earlier for earlier, after in pairs):
        return Rates()
    up, down, late = ((after - earlier) / elapsed_ns * 1e9 for earlier, after in pairs)
    return Rates(up, down, late)


def step_time_ns(marks: Sequence[Mark]) -> float | None:
    """The mean time of a step between the first mark and the last one; None: there are fewer than
    two marks."""
    if len(marks) < 2:
        return None
    return (marks[-1].time_ns - marks[0].time_ns) / (marks[-1].step - marks[0].step)


class History:
    """The last reading, and recent marks of all sessions."""

    def __init__(self) -> None:
        self._last: Reading | None = None
        self._cpu_share: float | None = None
        # By the keys of the sessions.
        self._rates: dict[str, Rates] = {}
        self._marks: dict[str, list[Mark]] = {}
        self._begun: dict[str, Mark] = {}  # each session's first reading

    @property
    def cpu_share(self) -> float | None:
        """CPU time of the daemon divided by the elapsed time, between the last two readings; 1: one
        CPU."""
        return self._cpu_share

    def rates(self, key: str) -> Rates:
        """The rates of the session with this key."""
        return self._rates.get(key, Rates())

    def add(self, reading: Reading) -> None:
        """Take a new reading. A new daemon's counters begin anew, so its first reading has no
        rates."""
        last = self._last
        if last is not None and (
            last.pid != reading.pid
            or last.time_ns > reading.time_ns
            or last.cpu_ns > reading.cpu_ns  # a container's new daemon has the same pid
        ):
            last = None
            self._marks, self._begun = {}, {}
        elapsed_ns = reading.time_ns - last.time_ns if last is not None else 0
        self._cpu_share = None
        if last is not None and elapsed_ns > 0:
            self._cpu_share = (reading.cpu_ns - last.cpu_ns) / elapsed_ns
        self._rates = {
            one.key: self._rates_of(last, one, reading.time_ns, elapsed_ns)
            for one in reading.sessions
        }
        self._marks = {key: self._marks[key] for key in self._rates}
        self._begun = {key: self._begun[key] for key in self._rates}
        self._last = reading

    def _rates_of(
        self, last: Reading | None, now: SessionReading, time_ns: int, elapsed_ns: int
    ) -> Rates:
        before = last.session(now.key) if last is not None else None
        if before is None or now.step < before.step:
            self._marks[now.key], self._begun[now.key] = [], Mark(time_ns, now.step)
            return Rates()
        moved = move_rates(before, now, elapsed_ns)
        marks = self._marks[now.key]
        if now.step > before.step:
            marks.append(Mark(time_ns, now.step))
        while len(marks) > 2 and marks[1].time_ns <= time_ns - STEP_WINDOW_NS:
            del marks[0]
        latest = marks[-1] if marks else self._begun[now.key]
        return Rates(
            moved.promoted_bytes_per_s,
            moved.demoted_bytes_per_s,
            moved.late_moves_per_s,
            step_time_ns(marks),
            time_ns - latest.time_ns,
        )
