# SPDX-License-Identifier: Apache-2.0
"""Detects whether a process waits for moves at its barriers or no longer waits after a time-out."""

from __future__ import annotations

import threading

from sentineld.observe.control_segment import ControlSegment


class Barriers:
    """The barriers of a process under a live plan, as its control words show them. All methods may
    be called from any thread.

    After a time-out or a stale heartbeat, the shim stops waiting at barriers. It waits again as
    soon as the moves of the barrier that timed out are complete (barrier_wait() in
    shim/native/boundary.c). The shim counts a stale heartbeat as a time-out, too. The shim reports
    neither the position (step and boundary) of the time-out nor the position at which waiting
    begins again. Instead, this class uses the positions at which hold() detects the time-out and
    the completion of the moves.

    Barriers that the process passed before it followed the plan count as passed without waiting.
    """

    def __init__(self, segment: ControlSegment) -> None:
        self._segment = segment
        self._lock = threading.Lock()
        words = segment.words()
        self._timeouts = words.barrier_timeouts
        self._stuck = False
        self._passed_position = words.position  # latest position known to be passed without a wait

    def hold(self, done_position: int) -> bool:
        """Whether barriers hold the process until moves are complete. done_position: the position
        up to which moves are complete."""
        if not self._segment.barrier_timeout_ns():
            return False
        timeouts, position = self._segment.barrier_timeouts(), self._segment.position()
        with self._lock:
            if timeouts != self._timeouts:
                self._timeouts = timeouts
                self._stuck, self._passed_position = True, position
            elif self._stuck and done_position >= self._passed_position:
                self._stuck, self._passed_position = False, position
            return done_position >= self._passed_position
