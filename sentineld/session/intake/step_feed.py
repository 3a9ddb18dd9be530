# SPDX-License-Identifier: Apache-2.0
"""Reads complete, plausible steps from the ring into which a process's shim records them."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from sentineld.base.errors import SentinelError
from sentineld.base.log_events import LogEvent, about
from sentineld.model.records import Records
from sentineld.observe.control_segment import ControlSegment
from sentineld.profile.step_check import accesses_problem, step_problem
from sentineld.profile.steps import Step, StepCutter
from sentineld.session.intake.claims import require_tensors

log = logging.getLogger(__name__)


class StepFeed:
    """Reads the ring of one process while the process records. Not thread-safe."""

    def __init__(self, segment: ControlSegment) -> None:
        self._segment = segment
        self._cutter = StepCutter()
        self._lost = 0
        self.found_records = False
        """Whether the last call to steps() found records in the ring."""

    def begin(self) -> None:
        """Discard the ring's content, so that steps() yields only steps recorded from now on."""
        self._lost = self._segment.ring_lost()
        self._segment.drain()
        self._cutter = StepCutter()

    def steps(self) -> Iterator[Step]:
        """Yields the steps that ended since the last call. The caller must exhaust the iterator.

        The steps are not gathered in a list, because many short steps with many live tensors would
        take much memory. Raises SentinelError if a step is implausible.
        """
        lost = self._segment.ring_lost()
        records = self._segment.drain()
        self.found_records = records.size > 0
        if lost != self._lost:
            # Records were lost before or among these records, so a step is incomplete. Discard all
            # of these records.
            log.warning(
                "%d records were lost: the ring was full",
                lost - self._lost,
                extra=about(LogEvent.RECORDS_LOST),
            )
            self._lost = lost
            self._cutter.gap()
            return
        if not self.found_records:
            return
        for step in self._cutter.steps(records):
            _require_none(step_problem(step))
            require_tensors(step)
            yield step


def require_plausible(accesses: Records) -> None:
    """Raise SentinelError if the operators' accesses (OP_ACCESS_DTYPE) are implausible."""
    _require_none(accesses_problem(accesses))


def _require_none(problem: str) -> None:
    if problem:
        raise SentinelError(
            "failed",
            f"implausible records: {problem}",
            "see docs/troubleshooting.md",
        )
