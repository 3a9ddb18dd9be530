# SPDX-License-Identifier: Apache-2.0
"""The daemon's view of a shim's control segment: shared memory with control words and a ring.

The segment belongs to the training process, which may write anything into it at
any time. So the daemon copies every word once, and checks and uses only the copy.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sentineld.model import protocol
from sentineld.model.records import PAGE_BYTES, RECORD_DTYPE
from sentineld.observe.segment import map_segment, mismatch, require_header

NAME = "control"
SEGMENT_BYTES_MIN = 2 * PAGE_BYTES
SEGMENT_BYTES_MAX = 16 << 20
"""About four times the size of a real shim's segment. The ring is a part of the segment, so this
value also limits the bytes that one drain() copies."""
ADDRESS_MAX = 1 << 47
"""End of user addresses on x86-64 with four-level page tables."""
HEADER_BYTES = 512
CACHE_LINE_BYTES = 64
_POSITION_MAX = (1 << 64) - 1


class ShimWords(NamedTuple):
    """A copy of the words that the shim updates in struct sentinel_control, except ring_head and
    cursor."""

    ring_lost: int  # records dropped because the ring was full
    step: int  # steps begun
    position: int  # step << 32 | boundary
    layer: int  # id of the current layer
    mode: int  # protocol.Mode
    heap_used: int  # high-water mark in bytes
    heap_live: int  # live bytes, page-rounded
    arena_base: int  # the arena's address; 0: no arena
    arena_bytes: int
    layout_id: int  # id of the live layout; 0: none
    small_bytes: int  # live bytes of tensors below 4 KiB
    fallback_bytes: int  # live bytes of larger tensors outside heap and arena
    diverged_steps: int  # total number of diverged steps
    diverged_in_row: int  # number of diverged steps in a row under the live layout
    barrier_timeouts: int  # barriers that timed out or found the heartbeat stale
    barrier_wait_ns: int  # total time that the process spent in barriers

    @property
    def unmanaged_bytes(self) -> int:
        """Live bytes of the tensors outside heap and arena. These tensors are smaller than 4 KiB,
        or heap and arena had no room for them."""
        return self.small_bytes + self.fallback_bytes


class ControlSegment:
    """A mapped control segment. Only reads and writes of single words are thread-safe."""

    def __init__(self, fd: int) -> None:
        """Map and check the segment; the caller closes the descriptor. Raises SentinelError."""
        mapped = map_segment(fd, NAME, SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX)
        self._header = np.frombuffer(mapped, protocol.CONTROL_DTYPE, 1)
        fixed = self._header[0].copy()
        require_header(fixed, NAME, protocol.CONTROL_MAGIC)
        offset, records = int(fixed["ring_offset"]), int(fixed["ring_records"])
        whole = offset + records * RECORD_DTYPE.itemsize
        if (
            records < 2
            or records & (records - 1)
            or offset < HEADER_BYTES
            or offset % CACHE_LINE_BYTES
            or whole > len(mapped)
        ):
            raise mismatch(NAME, "its ring is out of bounds")
        heap_base, heap_bytes = int(fixed["heap_base"]), int(fixed["heap_bytes"])
        if (heap_base | heap_bytes) % PAGE_BYTES or heap_base + heap_bytes > ADDRESS_MAX:
            raise mismatch(NAME, "its heap is outside the address space")
        self.heap_base, self.heap_bytes = heap_base, heap_bytes
        self._words = self._header[list(ShimWords._fields)]
        self._ring = np.frombuffer(mapped, RECORD_DTYPE, records, offset)
        self._tail = int(self._header["ring_head"][0])
        self._publish_tail()
        self.ring_overrun = 0
        self._fence = threading.Lock()

    def words(self) -> ShimWords:
        """Read all words. Each word is consistent, but the words may be from different times."""
        return ShimWords._make(self._words.item())

    def position(self) -> int:
        """The shim's position: step << 32 | boundary."""
        return int(self._header["position"][0])

    def unmanaged_bytes(self) -> int:
        """See ShimWords.unmanaged_bytes."""
        return int(self._header["small_bytes"][0]) + int(self._header["fallback_bytes"][0])

    def barrier_timeouts(self) -> int:
        """Number of barriers that timed out or found the heartbeat stale."""
        return int(self._header["barrier_timeouts"][0])

    def ring_lost(self) -> int:
        """Total number of records lost because the ring was full."""
        return int(self._header["ring_lost"][0])

    def drain(self) -> npt.NDArray[np.void]:
        """A copy of the records written since the last call; RECORD_DTYPE."""
        head = int(self._header["ring_head"][0])
        records = len(self._ring)
        count = head - self._tail
        if count <= 0:
            return np.empty(0, RECORD_DTYPE)
        if count > records:
            # This happens only if `ring_head` is corrupt: the shim never overwrites unread records.
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
        """Set the flags by which the daemon makes requests to the shim; bits of protocol.Flag."""
        self._header["flags"] = flags

    def set_heartbeat(self, time_ns: int) -> None:
        """Set the time of the daemon's last heartbeat, CLOCK_MONOTONIC."""
        self._header["heartbeat"] = time_ns

    def set_moves_done(self, position: int) -> None:
        """Publish a position P: the moves that barriers wait for are done up to P. This opens the
        barriers that wait for P or an earlier position."""
        self._header["moves_done"] = position

    def open_barriers(self) -> None:
        """Open the barriers of all steps, until set_moves_done() is called again. The shim reads
        messages only between two steps. So it may begin further steps, with barriers, before it
        reads the message that makes it stop using its layout."""
        self.set_moves_done(_POSITION_MAX)

    def set_wake_position(self, position: int) -> bool:
        """Ask the shim for one write to its eventfd, when its position reaches this one; 0: never.

        Returns whether the position has been reached already; the shim then possibly does not
        write.
        """
        self._header["wake_position"] = min(position, _POSITION_MAX)
        # The store must precede the load; see publish_position() in shim/native/boundary.c. Python
        # has no fence, but on x86-64, locking implies one.
        with self._fence:
            return self.position() >= position

    def set_barrier_timeout(self, timeout_ns: int) -> None:
        """Set the longest time that a barrier waits."""
        self._header["barrier_timeout_ns"] = timeout_ns

    def barrier_timeout_ns(self) -> int:
        """The longest time that a barrier waits; 0: no barrier waits."""
        return int(self._header["barrier_timeout_ns"][0])

    def close(self) -> None:
        """Unmap the segment. This object keeps the last values of the words. The shim does not see
        values that are set later."""
        # The mapping exists as long as an array views it, so all arrays are replaced. A thread that
        # is using an old array at this moment keeps this array and the mapping alive.
        self._header = self._header.copy()
        self._words = self._header[list(ShimWords._fields)]
        self._ring = np.empty(0, RECORD_DTYPE)

    def _publish_tail(self) -> None:
        self._header["ring_tail"] = self._tail
