# SPDX-License-Identifier: Apache-2.0
"""Occupies a node's memory until only so much is left for a training process.

    python3 -m tests.demo.balloon --node 0

For each line of its standard input, a number of bytes, it takes locked memory bound
to the node (or gives some back) until the node's free memory above the high watermarks
is so much, and prints one JSON line about what it reached. It holds the memory until
its standard input ends.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import sys
import time

from tests.demo.memory import free_above_high_bytes

_SYS_MBIND = 237  # x86-64
_MPOL_BIND = 2

TOLERANCE_BYTES = 128 << 10
COARSE_BYTES = 4 << 20
"""Above this distance huge pages may be used, below it single ones."""

ROUNDS_MAX = 200

_libc = ctypes.CDLL(None, use_errno=True)


def occupy(node: int, size_bytes: int) -> mmap.mmap:
    """Map, bind to the node and lock whole pages; raises OSError."""
    memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if size_bytes < COARSE_BYTES:
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    address = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(memory)))
    size = ctypes.c_size_t(size_bytes)
    mask = ctypes.c_ulong(1 << node)
    bits = ctypes.c_ulong(8 * ctypes.sizeof(mask))
    _check(
        _libc.syscall(_SYS_MBIND, address, size, _MPOL_BIND, ctypes.byref(mask), bits, 0), "mbind"
    )
    _check(_libc.mlock(address, size), "mlock")
    return memory


def _check(status: int, what: str) -> None:
    if status != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")


def inflate(held: list[mmap.mmap], node: int, leave_bytes: int) -> None:
    """Change what is held until leave_bytes are free above the node's high watermarks.

    Steps grow smaller towards the goal; the last ones may be given back. Raises
    RuntimeError where the goal is not reached within the tolerance.
    """
    for _ in range(ROUNDS_MAX):
        excess = free_above_high_bytes(node) - leave_bytes
        if abs(excess) <= TOLERANCE_BYTES:
            return
        if excess < 0:
            if not held:
                break
            held.pop().close()
            continue
        share = excess * 7 // 8 if excess > COARSE_BYTES else excess // 2
        held.append(occupy(node, max(mmap.PAGESIZE, share // mmap.PAGESIZE * mmap.PAGESIZE)))
    raise RuntimeError(
        f"node {node} has {free_above_high_bytes(node)} bytes above its high watermarks, "
        f"wanted are {leave_bytes}"
    )


def main() -> None:
    """Inflate as told, say so, hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--node", type=int, required=True)
    options = parser.parse_args()
    held: list[mmap.mmap] = []
    for line in sys.stdin:
        begin = time.monotonic()
        inflate(held, options.node, int(line))
        told = {
            "held_bytes": sum(len(memory) for memory in held),
            "left_bytes": free_above_high_bytes(options.node),
            "seconds": round(time.monotonic() - begin, 2),
        }
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
