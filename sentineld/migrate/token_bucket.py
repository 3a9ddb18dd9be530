# SPDX-License-Identifier: Apache-2.0
"""A token bucket: computes when a number of bytes will have moved at a given bandwidth."""

from __future__ import annotations

import threading

SLACK_NS = 2_000_000
"""If a transfer is requested at most this much later than it could have begun, the scheduler is
assumed to have caused the delay. The bandwidth that was unused during the delay then remains
available."""


class TokenBucket:
    """Bandwidth shared by all movers and both directions. Thread-safe.

    Unused bandwidth is not saved: if a transfer is requested more than SLACK_NS after it could have
    begun, it begins at the time of the request. So transfers that are requested and completed
    within T ns move at most as many bytes as the bandwidth allows in T + SLACK_NS.
    """

    def __init__(self, bytes_per_s: float, slack_ns: int = SLACK_NS) -> None:
        """Raises ValueError if bytes_per_s is not greater than 0."""
        if not bytes_per_s > 0:
            raise ValueError(f"{bytes_per_s} bytes per second")
        self._ns_per_byte = 1e9 / bytes_per_s
        self._slack_ns = slack_ns
        self._ready_ns = 0.0
        self._lock = threading.Lock()

    def duration_ns(self, size: int) -> float:
        """The time that a transfer of size bytes takes."""
        return size * self._ns_per_byte

    def busy_ns(self, now_ns: int, piece_bytes: int) -> int:
        """The time until all reserved transfers have ended; 0 if at most piece_bytes bytes of them
        are left. An interrupted transfer still occupies the bandwidth of the piece (page) under way
        (see give_back()), but the caller can already reserve the next transfer."""
        with self._lock:
            left_ns = self._ready_ns - now_ns
        return round(left_ns) if left_ns > piece_bytes * self._ns_per_byte else 0

    def take(self, size: int, now_ns: int, wanted_ns: int = 0) -> int:
        """Reserve size bytes; returns the time, on now_ns's clock, at which they will have moved.

        wanted_ns: the earliest time at which the transfer can begin: before this time, there was
            nothing to transfer.
        """
        with self._lock:
            begin = max(self._ready_ns, wanted_ns)
            if now_ns - begin > self._slack_ns:
                begin = float(now_ns)
            self._ready_ns = begin + size * self._ns_per_byte
            return round(self._ready_ns)

    def give_back(self, count: int, size: int, left_ns: int) -> int:
        """Give back the bandwidth that an interrupted transfer has not used; returns how many
        pieces of the transfer are still to be transferred.

        count: number of pieces of the transfer; size: bytes of each.
        left_ns: time from now to the end of the transfer. The piece under way counts as
            transferred: the next transfer begins only after it.
        """
        left = min(int(max(left_ns, 0) / (size * self._ns_per_byte)), count)
        with self._lock:
            self._ready_ns -= left * size * self._ns_per_byte
        return left
