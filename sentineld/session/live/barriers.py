# SPDX-License-Identifier: Apache-2.0
"""Whether a process waits at its barriers for moves, or passes them anyway."""

from __future__ import annotations

import threading

from sentineld.observe.ring import ControlSegment


class Barriers:
    """Of a process under a live plan, by its words; may be asked from any thread.

    After a time-out the shim passes all barriers until the moves have caught up
    (barrier_wait() in shim/native/boundary.c). It tells neither where that was nor
    when it waits again, so that each is taken for where the process is when we hear
    of it. What it passed before the plan was followed is taken to have been passed so, too.
    """

    def __init__(self, segment: ControlSegment) -> None:
        self._segment = segment
        self._lock = threading.Lock()
        words = segment.words()
        self._timeouts = words.barrier_timeouts
        self._stuck = False
        self._passed_position = words.position  # without waiting

    def hold(self, done_position: int) -> bool:
        """Whether one whose moves are not complete holds the process. done_position: up to where
        moves are complete."""
        if not self._segment.barrier_timeout_ns():
            return False
        words = self._segment.words()
        with self._lock:
            if words.barrier_timeouts != self._timeouts:
                self._timeouts = words.barrier_timeouts
                self._stuck, self._passed_position = True, words.position
            elif self._stuck and done_position >= self._passed_position:
                self._stuck, self._passed_position = False, words.position
            return done_position >= self._passed_position
