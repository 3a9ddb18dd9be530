# SPDX-License-Identifier: Apache-2.0
"""Limits how much of the daemon's time the connections of each user take.

Python runs one thread at a time. While the daemon handles one user's messages, the threads that
move other users' pages must wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable

SHARE = 0.03
"""Share of the event loop's time that one user's messages may take."""
BURST_S = 0.05
"""Time that one user's messages may take without a pause. They can delay the heartbeat by this
time; shims tolerate much longer delays."""


class Pace:
    """The time that each user's messages took. All calls come from the event loop's thread."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._paid_s: dict[int, float] = {}
        """By user: the clock time until which the user's share is used up. Messages that took T
        seconds use up the share of the next T / SHARE seconds."""

    def charge(self, uid: int, took_s: float) -> None:
        """Count time that a user's messages took."""
        paid_s = max(self._paid_s.get(uid, 0.0), self._clock_s())
        self._paid_s[uid] = paid_s + took_s / SHARE

    def rest_s(self, uid: int) -> float:
        """Time to wait before the next read from this user; 0 or less: read now."""
        ahead_s = self._paid_s.get(uid, 0.0) - self._clock_s()
        if ahead_s <= 0:
            self._paid_s.pop(uid, None)
        return ahead_s - BURST_S / SHARE
