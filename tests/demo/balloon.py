# SPDX-License-Identifier: Apache-2.0
"""Occupies a node's memory and leaves a given number of bytes to other processes.

    python3 -m tests.demo.balloon --node 0

Each line of standard input is the number of bytes to leave: the anonymous memory that other
processes have on the node, plus the node's free memory above the high watermarks. The balloon
locks or frees memory bound to the node until the sum has this value, and prints one JSON line. Then
it adjusts its size every FOLLOW_SECONDS, so that the sum stays the same: if the page cache grows,
for example, the balloon shrinks. The balloon frees all memory when its standard input ends.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import select
import sys
import time

from tests.demo.memory import anonymous_bytes, free_above_high_bytes

_SYS_MBIND = 237  # x86-64
_MPOL_BIND = 2

TOLERANCE_BYTES = 128 << 10
FINE_BYTES = 128 << 20
"""Size of the block that is locked and freed in small pages; other blocks may have huge pages."""

PIECE_BYTES = 128 << 10
"""Bytes that are locked in one call when little memory is free. Other processes allocate at the
same time. The memory between the high and the min watermark must therefore suffice for their
allocations and for one such call."""

ROUNDS_MAX = 200
FOLLOW_SECONDS = 0.5

_libc = ctypes.CDLL(None, use_errno=True)


def _check(status: int, what: str) -> None:
    if status != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")


class Block:
    """Memory bound to a node; its first locked_bytes bytes are locked."""

    def __init__(self, node: int, size_bytes: int, huge: bool) -> None:
        self._memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._memory.madvise(mmap.MADV_HUGEPAGE if huge else mmap.MADV_NOHUGEPAGE)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self.locked_bytes = 0
        mask = ctypes.c_ulong(1 << node)
        bits = ctypes.c_ulong(8 * ctypes.sizeof(mask))
        start, size = ctypes.c_void_p(self._address), ctypes.c_size_t(size_bytes)
        _check(
            _libc.syscall(_SYS_MBIND, start, size, _MPOL_BIND, ctypes.byref(mask), bits, 0), "mbind"
        )

    def grow(self, more_bytes: int) -> None:
        """Lock more bytes, up to the block's size. Raises OSError."""
        more_bytes = min(more_bytes, len(self._memory) - self.locked_bytes)
        _check(_libc.mlock(*self._span(more_bytes)), "mlock")
        self.locked_bytes += more_bytes

    def shrink(self, less_bytes: int) -> None:
        """Unlock and free bytes at the end of the locked part."""
        less_bytes = min(less_bytes, self.locked_bytes)
        self.locked_bytes -= less_bytes
        _check(_libc.munlock(*self._span(less_bytes)), "munlock")
        self._memory.madvise(mmap.MADV_DONTNEED, self.locked_bytes, less_bytes)

    def _span(self, size_bytes: int) -> tuple[ctypes.c_void_p, ctypes.c_size_t]:
        return ctypes.c_void_p(self._address + self.locked_bytes), ctypes.c_size_t(size_bytes)


class Balloon:
    """The locked memory of one node."""

    def __init__(self, node: int) -> None:
        self._node = node
        self._coarse: list[Block] = []
        self._fine = Block(node, FINE_BYTES, huge=False)

    @property
    def held_bytes(self) -> int:
        """Bytes that the balloon has locked on the node."""
        return sum(block.locked_bytes for block in [*self._coarse, self._fine])

    @property
    def others_bytes(self) -> int:
        """Anonymous memory of other processes on the node."""
        return anonymous_bytes(self._node) - self.held_bytes

    @property
    def left_bytes(self) -> int:
        """Anonymous memory of other processes on the node, plus the free memory left to them."""
        return free_above_high_bytes(self._node) + self.others_bytes

    def step_towards(self, leave_bytes: int) -> bool:
        """Lock or free memory to bring left_bytes closer to leave_bytes. Returns True, and changes
        nothing, if they differ by at most TOLERANCE_BYTES."""
        excess = self.left_bytes - leave_bytes
        if abs(excess) <= TOLERANCE_BYTES:
            return True
        if excess < 0:
            self._fine.shrink(_pages(-excess))
        elif excess > FINE_BYTES:
            block = Block(self._node, _pages(excess - FINE_BYTES // 2), huge=True)
            block.grow(excess)
            self._coarse.append(block)
        else:
            self._grow(excess)
        return False

    def _grow(self, more_bytes: int) -> None:
        """Lock small pages, at most as many as are free. Locking more would make the kernel reclaim
        other pages or invoke the OOM killer."""
        while more_bytes > 0 and (free := free_above_high_bytes(self._node)) >= PIECE_BYTES:
            piece = _pages(min(more_bytes, max(free // 8, PIECE_BYTES)))
            self._fine.grow(piece)
            more_bytes -= piece

    def inflate(self, leave_bytes: int) -> None:
        """Call step_towards() until it returns True. Raises RuntimeError after ROUNDS_MAX calls."""
        for _ in range(ROUNDS_MAX):
            if self.step_towards(leave_bytes):
                return
        raise RuntimeError(
            f"node {self._node} has {self.left_bytes} bytes left instead of {leave_bytes}"
        )


def _pages(size_bytes: int) -> int:
    return max(mmap.PAGESIZE, size_bytes // mmap.PAGESIZE * mmap.PAGESIZE)


def main() -> None:
    """Leave as many bytes as each line of standard input says; adjust the balloon in between."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--node", type=int, required=True)
    options = parser.parse_args()
    balloon = Balloon(options.node)
    leave_bytes: int | None = None
    while True:
        # select() does not see lines in the buffer of sys.stdin. This buffer is empty, because the
        # parent sends a line only after the reply to the previous one.
        ready, _, _ = select.select([sys.stdin], [], [], FOLLOW_SECONDS)
        if not ready:
            if leave_bytes is not None:
                balloon.step_towards(leave_bytes)
            continue
        line = sys.stdin.readline()
        if not line:
            return
        begin = time.monotonic()
        leave_bytes = int(line)
        balloon.inflate(leave_bytes)
        answer = {
            "held_bytes": balloon.held_bytes,
            "left_bytes": balloon.left_bytes,
            "others_bytes": balloon.others_bytes,
            "seconds": round(time.monotonic() - begin, 2),
        }
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
