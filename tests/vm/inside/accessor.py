# SPDX-License-Identifier: Apache-2.0
"""A program whose every page access is known. Usage: accessor.py SOCKET_FD [WAY].

It maps CHUNKS chunks and one more beyond them, tells their address, and hands
out over the socket what its writes may be watched by (WAY). A word on stdin is
one thing to do; a line on stdout says that it is done.
"""

from __future__ import annotations

import json
import mmap
import os
import select
import socket
import sys
import time

import numpy as np
from chunks import CHUNK_BYTES, CHUNKS, PAGE, Chunk

from sentineld.shim import writes

WARM_EVERY_S = 0.2

# Python's own memory is elsewhere, so nothing but what is written here touches these pages.
# Anonymous and private, as tensors are.
memory = mmap.mmap(
    -1, (CHUNKS + 1) * CHUNK_BYTES + (2 << 20), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
)
memory.madvise(mmap.MADV_NOHUGEPAGE)
cells = np.frombuffer(memory, np.uint8)
# What is watched begins at a boundary of 2 MiB, as a tensor's heap does.
skip = -cells.ctypes.data % (2 << 20)
pages = cells[skip : skip + (CHUNKS + 1) * CHUNK_BYTES].reshape(CHUNKS + 1, -1, PAGE)[:, :, 0]


def read(chunk: int) -> int:
    return int(pages[chunk].sum())


def write(chunk: int) -> None:
    pages[chunk] += 1


def overwrite(chunk: int) -> None:
    pages[chunk] = 3


def prepare() -> None:
    """All but the chunks that are to be born: touched, so that they are there."""
    for chunk in Chunk:
        if chunk not in (Chunk.BORN, Chunk.NEVER):
            overwrite(chunk)
    overwrite(CHUNKS)


def once() -> None:
    read(Chunk.READ)
    overwrite(Chunk.WRITTEN)
    overwrite(Chunk.BORN)
    read(Chunk.SLOW)
    overwrite(Chunk.WRITTEN_THEN_READ)
    read(Chunk.WRITTEN_THEN_READ)
    overwrite(CHUNKS)


def loop() -> None:
    """Until the next word: two chunks all the time, one now and then."""
    warm_s = 0.0
    while not select.select([sys.stdin], [], [], 0)[0]:
        read(Chunk.READ)
        overwrite(Chunk.WRITTEN)
        if time.monotonic() - warm_s > WARM_EVERY_S:
            warm_s = time.monotonic()
            read(Chunk.SLOW)


def check() -> list[int]:
    """Sums that tell whether any byte was lost."""
    return [read(chunk) for chunk in range(CHUNKS + 1)]


def hand_out(channel: socket.socket, way: str) -> None:
    start = cells.ctypes.data + skip
    if way == writes.SOFT_DIRTY:
        fds = (
            os.open("/proc/self/pagemap", os.O_RDONLY),
            os.open("/proc/self/clear_refs", os.O_WRONLY),
        )
    else:
        offered, fds = writes.open_write_watch(start, (CHUNKS + 1) * CHUNK_BYTES)
        assert offered == way
    socket.send_fds(channel, [b"fds"], list(fds))
    for fd in fds:
        os.close(fd)


def main() -> None:
    if len(sys.argv) > 2:
        hand_out(socket.socket(fileno=int(sys.argv[1])), sys.argv[2])
    print(json.dumps({"start": int(cells.ctypes.data) + skip}), flush=True)
    acts = {"prepare": prepare, "once": once, "loop": loop, "check": check}
    for line in sys.stdin:
        word = line.strip()
        if word in acts:
            if word == "loop":
                print("null", flush=True)
            print(json.dumps(acts[word]()), flush=True)


main()
