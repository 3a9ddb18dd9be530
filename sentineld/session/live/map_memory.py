# SPDX-License-Identifier: Apache-2.0
"""Limits the memory of the residency maps of all live plans together."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from sentineld.base.errors import SentinelError
from sentineld.base.units import format_bytes
from sentineld.model.records import PAGE_BYTES

BYTES_PER_PAGE = 3
"""The map has a byte for each page. A read of the residency and a report of the pages' tiers need
up to two more for a moment. On paged tiers, the map is the process's own memory, but reports copy
it."""
USER_BYTES_MAX = 3 << 30
"""Limit on the bytes for one user's processes: the maps of 4 TiB of arena and heap. On a machine
with up to 1 TiB of memory, no single process exceeds it; see most_bytes() in claims.py."""
ALL_BYTES_MAX = 4 << 30
"""Limit on the bytes for all processes. The service's unit has MemoryMax=9G, and the samples of
page accesses (intake/sample_memory.py) may take 4 GiB of it."""


class MapMemory:
    """Counts the bytes that residency maps need, in total and for each user. Thread-safe."""

    def __init__(self, user_bytes_max: int, all_bytes_max: int) -> None:
        self._user_bytes_max, self._all_bytes_max = user_bytes_max, all_bytes_max
        self._lock = threading.Lock()
        self._held: Counter[int] = Counter()  # bytes by user ID

    @contextmanager
    def held(self, uid: int, pid: int, ranges: Iterable[tuple[int, int]]) -> Iterator[None]:
        """Count the maps of a process's (start, bytes) ranges until the context ends. Call this
        before the maps are made. Raises SentinelError("busy") if they exceed a limit."""
        count = BYTES_PER_PAGE * sum(-(-size // PAGE_BYTES) for _, size in ranges)
        self._take(uid, pid, count)
        try:
            yield
        finally:
            self._free(uid, count)

    def _take(self, uid: int, pid: int, count: int) -> None:
        with self._lock:
            for whose, held, limit in (
                (f"user {uid}'s processes", self._held[uid], self._user_bytes_max),
                ("all processes", self._held.total(), self._all_bytes_max),
            ):
                if held + count > limit:
                    raise SentinelError(
                        "busy",
                        f"process {pid} can't be managed: the page maps of {whose} would exceed "
                        f"{format_bytes(limit)}",
                        "end or detach other trainings",
                    )
            self._held[uid] += count

    def _free(self, uid: int, count: int) -> None:
        with self._lock:
            self._held[uid] -= count
            if not self._held[uid]:
                del self._held[uid]


MEMORY = MapMemory(USER_BYTES_MAX, ALL_BYTES_MAX)
"""Limits the maps of all sessions of the daemon."""
