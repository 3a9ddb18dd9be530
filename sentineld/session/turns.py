# SPDX-License-Identifier: Apache-2.0
"""Limits how often sessions check their processes. Each check is a turn (Driver.turn()); all
sessions of one user together have a limited number of turns per second.

Each turn wakes a thread. While threads wait for Python's GIL, each of them wakes up every SWITCH_S
seconds (daemon.py). Several hundred such threads take CPU time that the thread with the GIL needs.
"""

from __future__ import annotations

import threading
from collections import Counter

TURNS_PER_S = 100
"""Limit on the turns per second of all sessions of one user together."""


class Turns:
    """Counts, for each user, the sessions that take turns. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sessions: Counter[int] = Counter()  # by user ID

    def enter(self, uid: int) -> None:
        """Count one more session of a user."""
        with self._lock:
            self._sessions[uid] += 1

    def leave(self, uid: int) -> None:
        """Stop counting one of a user's sessions."""
        with self._lock:
            self._sessions[uid] -= 1
            if not self._sessions[uid]:
                del self._sessions[uid]

    def interval_s(self, uid: int, wanted_s: float) -> float:
        """Time between two turns of each of the user's sessions; at least wanted_s."""
        return max(wanted_s, self._sessions[uid] / TURNS_PER_S)
