# SPDX-License-Identifier: Apache-2.0
"""Limits the memory of the samples that all sessions together keep."""

from __future__ import annotations

import threading
import weakref
from collections import Counter, deque

import numpy as np
import numpy.typing as npt

USER_BYTES_MAX = 128 << 20
"""Limit on the bytes of the kept samples of one user's sessions: 8 million records of 16 bytes."""
ALL_BYTES_MAX = 3 * USER_BYTES_MAX
"""Limit on the bytes of all kept samples. Making a profile, a trace or figures of the meter from
samples takes up to ten times their memory, that is, up to 4 GiB. The service's unit has
MemoryMax=9G. If the planning processes (two with up to 4 GiB each) need too much memory at the same
time, the kernel kills them, not the daemon."""


class SampleMemory:
    """Counts the bytes of the kept samples, in total and for each user. Thread-safe."""

    def __init__(self, user_bytes_max: int, all_bytes_max: int) -> None:
        self._user_bytes_max, self._all_bytes_max = user_bytes_max, all_bytes_max
        self._lock = threading.Lock()
        self._held: Counter[int] = Counter()  # bytes by user ID
        # (user ID, bytes) of freed arrays that are still counted in _held. An array may be freed at
        # any time, even in a thread that holds the lock, so the finalizer must not take the lock.
        self._freed: deque[tuple[int, int]] = deque()

    def keep(self, uid: int, samples: npt.NDArray[np.void]) -> None:
        """Count a user's array until it is freed."""
        with self._lock:
            self._held[uid] += samples.nbytes
        weakref.finalize(samples, self._freed.append, (uid, samples.nbytes)).atexit = False

    def fits(self, uid: int) -> bool:
        """Whether the arrays of this user, and of all users, are within the limits. If not, the
        caller should free some of the user's arrays."""
        with self._lock:
            while self._freed:
                owner, count = self._freed.popleft()
                self._held[owner] -= count
                if not self._held[owner]:
                    del self._held[owner]
            user_bytes, all_bytes = self._held[uid], self._held.total()
        return user_bytes <= self._user_bytes_max and all_bytes <= self._all_bytes_max
