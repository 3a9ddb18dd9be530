# SPDX-License-Identifier: Apache-2.0
"""The daemon's view of a shim's control segment: its words and its ring.

The segment belongs to the traced process, which may write anything at any
time: every word is read once, bounded, and used as a copy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sentineld.model import protocol
from sentineld.model.records import RECORD_DTYPE
from sentineld.observe.segment import map_segment, mismatch, require_header

NAME = "control"
SEGMENT_BYTES_MAX = 1 << 30


@dataclass(frozen=True)
class ShimWords:
    """One reading of the words that the shim writes; see struct sentinel_control."""

    ring_lost: int
    step: int
    position: int
    layer: int
    mode: int
    heap_used: int
    heap_live: int
    arena_base: int
    arena_bytes: int
    layout_id: int
    small_bytes: int
    fallback_bytes: int
    diverged_steps: int
    diverged_in_row: int
    barrier_timeouts: int
    barrier_wait_ns: int

    @property
    def unmanaged_bytes(self) -> int:
        """Live tensor bytes outside heap and arena: small tensors, and what neither could take."""
        return self.small_bytes + self.fallback_bytes


class ControlSegment:
    """A mapped control segment. Not thread-safe but for its single words."""

    def __init__(self, fd: int) -> None:
        """Map and check the segment; the caller keeps the descriptor. Raises SentinelError."""
        self._map = map_segment(fd, NAME, 8192, SEGMENT_BYTES_MAX)
        self._header = np.frombuffer(self._map, protocol.CONTROL_DTYPE, 1)
        fixed = self._header[0].copy()
        require_header(fixed, NAME, protocol.CONTROL_MAGIC)
        offset, records = int(fixed["ring_offset"]), int(fixed["ring_records"])
        whole = offset + records * RECORD_DTYPE.itemsize
        if (
            records < 2
            or records & (records - 1)
            or offset < 512
            or offset % 64
            or whole > len(self._map)
        ):
            raise mismatch(NAME, "its ring lies outside")
        self.heap_base = int(fixed["heap_base"])
        self.heap_bytes = int(fixed["heap_bytes"])
        self._words = self._header[list(ShimWords.__dataclass_fields__)]
        self._ring = np.frombuffer(self._map, RECORD_DTYPE, records, offset)
        self._tail = int(self._header["ring_head"][0])
        self._publish_tail()
        self.ring_overrun = 0

    def words(self) -> ShimWords:
        """A reading of all words at once; each is whole, they may be of different moments."""
        return ShimWords(*self._words.item())

    def position(self) -> int:
        """step << 32 | boundary."""
        return int(self._header["position"][0])

    def ring_lost(self) -> int:
        """Records that found no room in the ring, ever."""
        return int(self._header["ring_lost"][0])

    def drain(self) -> npt.NDArray[np.void]:
        """Records written since the last call, copied; RECORD_DTYPE."""
        head = int(self._header["ring_head"][0])
        records = len(self._ring)
        count = head - self._tail
        if count <= 0:
            return np.empty(0, RECORD_DTYPE)
        if count > records:
            # Only a lying or a foreign writer gets here: the shim never passes the tail.
            self.ring_overrun += count - records
            self._tail, count = head - records, records
        first = self._tail & (records - 1)
        end = first + count
        if end <= records:
            taken = self._ring[first:end].copy()
        else:
            taken = np.concatenate([self._ring[first:], self._ring[: end - records]])
        self._tail = head
        self._publish_tail()
        return taken

    def set_flags(self, flags: int) -> None:
        """What the shim is asked to do; protocol.FLAG_*."""
        self._header["flags"] = flags

    def set_heartbeat(self, time_ns: int) -> None:
        """Say that the daemon lives; CLOCK_MONOTONIC."""
        self._header["heartbeat"] = time_ns

    def set_moves_done(self, position: int) -> None:
        """Let barriers up to this position pass."""
        self._header["moves_done"] = position

    def set_barrier_timeout(self, timeout_ns: int) -> None:
        """How long a barrier waits at most."""
        self._header["barrier_timeout_ns"] = timeout_ns

    def barrier_timeout_ns(self) -> int:
        """How long a barrier waits at most; 0: no barrier waits."""
        return int(self._header["barrier_timeout_ns"][0])

    def _publish_tail(self) -> None:
        self._header["ring_tail"] = self._tail
