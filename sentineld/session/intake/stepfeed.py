# SPDX-License-Identifier: Apache-2.0
"""Whole steps that may be true, out of what a process writes into its ring."""

from __future__ import annotations

import logging

from sentineld.base.errors import SentinelError
from sentineld.model.records import Records
from sentineld.observe.ring import ControlSegment
from sentineld.profile.plausible import accesses_problem, step_problem
from sentineld.profile.steps import Step, StepCutter

log = logging.getLogger(__name__)


class StepFeed:
    """Reads one process's ring while it records. One thread calls."""

    def __init__(self, segment: ControlSegment) -> None:
        self._segment = segment
        self._cutter = StepCutter()
        self._lost = 0

    def begin(self) -> None:
        """Forget what is in the ring: what is recorded from now on counts."""
        self._lost = self._segment.ring_lost()
        self._segment.drain()
        self._cutter = StepCutter()

    def steps(self) -> list[Step]:
        """The steps that ended since the last call. Raises SentinelError for what can't be true."""
        lost = self._segment.ring_lost()
        records = self._segment.drain()
        if lost != self._lost:
            # Some are missing among these, or before them: no step over the gap is whole.
            log.warning("a full ring lost %d records", lost - self._lost)
            self._lost = lost
            self._cutter.gap()
            return []
        if not len(records):
            return []
        steps = self._cutter.feed(records)
        for step in steps:
            _require_none(step_problem(step))
        return steps


def require_plausible(accesses: Records) -> None:
    """Raise SentinelError for operators' accesses (OP_ACCESS_DTYPE) that can't be true."""
    _require_none(accesses_problem(accesses))


def _require_none(problem: str) -> None:
    if problem:
        raise SentinelError(
            "failed",
            f"what it says of itself can't be true: {problem}",
            "see docs/how-to.md, When something is wrong",
        )
