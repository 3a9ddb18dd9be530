# SPDX-License-Identifier: Apache-2.0
"""Fuzzes the data that the daemon reads from a process's pager, on paged tiers.

Works like tests/fuzz/daemon.py. In addition, the client writes to all parts of the residency
segment, which is memory that it shares with the daemon: the header, the residency maps, the pager's
counters, and the two queues of the daemon's moves. The toy training (tests/hostile/toy_training.py)
has no pager that takes moves from the queues. A queued move stays in its queue unless the client
overwrites the queue's head or tail.

Needs access to /dev/userfaultfd, as the daemon does.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from sentineld.config import Config, TierOverrides
from sentineld.migrate import paged
from sentineld.model import protocol
from tests.fuzz import daemon
from tests.fuzz.process import Process

QUEUES = ("evict", "fetch")
COUNTS = tuple(
    name for name in protocol.PAGING_DTYPE.names or () if name not in (*QUEUES, "reserved")
)


class PagedProcess(Process):
    """A client that also writes to the residency segment."""

    def actions(self) -> tuple[Callable[[], None], ...]:
        """The possible actions."""
        return (*super().actions(), self._pager_word, self._pager_word, self._residency_word)

    def _pager_word(self) -> None:
        """Write a counter, or a queue's head or tail."""
        script = self._script
        if self._toy is None or self._toy.residency is None:
            return
        residency = self._toy.residency
        offset = int(residency.header["paging_offset"][0])
        size = protocol.PAGING_DTYPE.itemsize
        if not 0 < offset <= len(residency.map) - size:
            return
        words = np.frombuffer(residency.map, protocol.PAGING_DTYPE, 1, offset)
        number = script.byte()
        if number % 2:
            name = COUNTS[number // 2 % len(COUNTS)]
            words[name] = np.uint64(script.number(8)).astype(words.dtype[name])
            return
        queue = words[QUEUES[number // 2 % 2]]
        word, base = script.pick((("tail", "head"), ("tail", "tail"), ("head", "tail")))
        near = int(queue[base][0]) + script.byte() - 128
        queue[word] = (script.number(8) if number & 64 else near) % (1 << 64)

    def _residency_word(self) -> None:
        """Overwrite any eight bytes of the segment, even those that only the daemon writes."""
        script = self._script
        if self._toy is None or self._toy.residency is None:
            return
        mapped = self._toy.residency.map
        at = script.number(4) % (len(mapped) - 8)
        if script.byte() % 2:
            at %= protocol.RESIDENCY_DTYPE.itemsize
        mapped[at : at + 8] = script.number(8).to_bytes(8, "little")


class Target(daemon.Target):
    """The fuzz target; see daemon.Target."""

    process = PagedProcess

    @staticmethod
    def config(folder: Path) -> Config:
        """Paged tiers with fixed figures."""
        # With a longer limit, the mover would spend most of the fuzzer's time waiting for room in
        # full queues.
        paged.ROOM_WAIT_S = 0.01
        figures = TierOverrides(
            paged=str(folder),
            slow_read_bytes_per_s=1e9,
            slow_write_bytes_per_s=1e9,
            migration_bytes_per_s=1e12,
        )
        return Config(tiers=figures, barrier_timeout_ms=1)
