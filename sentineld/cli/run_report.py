# SPDX-License-Identifier: Apache-2.0
"""The lines that the verb `run` prints about each training process: one when the process becomes
managed, and a summary at the end of the command."""

from __future__ import annotations

from typing import Any

from sentineld.base.units import format_bytes
from sentineld.top.rates import Mark, step_time_ns
from sentineld.top.readings import SessionReading


class ProcessReport:
    """One process, as the daemon's answers to `status` describe it."""

    def __init__(self) -> None:
        self._last: SessionReading | None = None
        self._managed: SessionReading | None = None
        """The last reading while the process was managed."""
        self._marks: list[Mark] = []
        """Times and step numbers: the first and the last Mark of the latest period in which the
        process was managed."""

    @property
    def step(self) -> int:
        """The process's step as of the last update(); 0 before the first one."""
        return 0 if self._last is None else self._last.step

    def update(self, session: dict[str, Any], time_ns: int) -> str | None:
        """Read the process's session from an answer to `status`. time_ns: the time of the answer on
        the daemon's clock.

        Returns a line if the process is now managed for the first time, else None.
        """
        before, self._last = self._last, SessionReading.of(session)
        now = self._last
        if not now.managed:
            return None
        first, self._managed = self._managed is None, now
        if before is None or not before.managed:
            self._marks = []
        if not self._marks or now.step > self._marks[-1].step:
            self._marks = [*self._marks[:1], Mark(time_ns, now.step)]
        if not first:
            return None
        return (
            f"process {now.pid} is managed: policy {now.policy}, "
            f"{format_bytes(now.budget_bytes)} fast, predicted step "
            f"{_seconds(now.predicted_step_ns)}, predicted fast share "
            f"{_percent(now.predicted_fast_share)}"
        )

    def summary(self) -> str:
        """A line about the process, as of the last update(). The fast shares and the step times are
        those of the latest period in which the process was managed."""
        last, managed = self._last, self._managed
        assert last is not None
        steps = f"process {last.pid}: {last.step} steps"
        if managed is None:
            return f"{steps}, never managed; last state {last.state}: {last.reason}"
        return (
            f"{steps}; fast share {_percent(managed.fast_share)} "
            f"(predicted {_percent(managed.predicted_fast_share)}); "
            f"step {_seconds(step_time_ns(self._marks))} "
            f"(predicted {_seconds(managed.predicted_step_ns)}); "
            f"moved {format_bytes(last.promoted_bytes)} up and "
            f"{format_bytes(last.demoted_bytes)} down; {last.diverged_steps} diverged steps"
        )


def _seconds(time_ns: float | None) -> str:
    return "unknown" if time_ns is None else f"{time_ns / 1e9:.4f} s"


def _percent(share: float | None) -> str:
    return "not metered" if share is None else f"{share:.1%}"
