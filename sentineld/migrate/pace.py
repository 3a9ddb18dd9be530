# SPDX-License-Identifier: Apache-2.0
"""A token bucket in time: when would so many bytes have moved, at a given bandwidth?"""

from __future__ import annotations

import threading

SLACK_NS = 2_000_000
"""A user that comes back so soon never stopped: what it lost to scheduling it may make up for."""


class TokenBucket:
    """Bandwidth that all who move share, both directions alike. Any thread may call.

    Nothing is saved up: who comes after a pause begins from then. So over any
    span of time no more is granted than the span, and SLACK_NS, are good for.
    """

    def __init__(self, bytes_per_s: float, slack_ns: int = SLACK_NS) -> None:
        """bytes_per_s: greater than 0. Raises ValueError."""
        if not bytes_per_s > 0:
            raise ValueError(f"{bytes_per_s} bytes per second")
        self._ns_per_byte = 1e9 / bytes_per_s
        self._slack_ns = slack_ns
        self._ready_ns = 0.0
        self._lock = threading.Lock()

    def take(self, size: int, now_ns: int) -> int:
        """The time (of now_ns's clock) at which size bytes more have moved."""
        with self._lock:
            late = now_ns - self._ready_ns
            begin = self._ready_ns if late <= self._slack_ns else float(now_ns)
            self._ready_ns = begin + size * self._ns_per_byte
            return round(self._ready_ns)
