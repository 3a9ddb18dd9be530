# SPDX-License-Identifier: Apache-2.0
"""A program whose page accesses are all known. Usage: accessor.py SOCKET_FD [WAY].

The program maps CHUNKS chunks (see chunks.py) and one more after them, and prints the address of
the first chunk. WAY names a method by which another process can track the program's writes. If WAY
is given, the program opens the descriptors that this method needs and sends them over the socket.
With or without WAY, the program reads commands from stdin, one per line, and answers each with a
line. The command `loop` has two answers: a line when the loop starts and a line when it ends.
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

# The mapping is anonymous and private, like tensor memory. Python's heap is elsewhere, so only the
# functions below access these pages.
memory = mmap.mmap(
    -1, (CHUNKS + 1) * CHUNK_BYTES + (2 << 20), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
)
memory.madvise(mmap.MADV_NOHUGEPAGE)
cells = np.frombuffer(memory, np.uint8)
# The watched memory begins at a multiple of 2 MiB, as the shim's heap does.
skip = -cells.ctypes.data % (2 << 20)
pages = cells[skip : skip + (CHUNKS + 1) * CHUNK_BYTES].reshape(CHUNKS + 1, -1, PAGE)[:, :, 0]


def read(chunk: int) -> int:
    return int(pages[chunk].sum())


def write(chunk: int) -> None:
    pages[chunk] += 1


def overwrite(chunk: int) -> None:
    pages[chunk] = 3


def prepare() -> None:
    """Touch all chunks except those that must be absent."""
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
    """Until the next command, access two chunks continuously and a third one every WARM_EVERY_S."""
    warm_s = 0.0
    while not select.select([sys.stdin], [], [], 0)[0]:
        read(Chunk.READ)
        overwrite(Chunk.WRITTEN)
        if time.monotonic() - warm_s > WARM_EVERY_S:
            warm_s = time.monotonic()
            read(Chunk.SLOW)


def check() -> list[int]:
    """The sum of each chunk, to detect lost writes."""
    return [read(chunk) for chunk in range(CHUNKS + 1)]


def send_descriptors(channel: socket.socket, way: str) -> None:
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
        send_descriptors(socket.socket(fileno=int(sys.argv[1])), sys.argv[2])
    print(json.dumps({"start": int(cells.ctypes.data) + skip}), flush=True)
    commands = {"prepare": prepare, "once": once, "loop": loop, "check": check}
    for line in sys.stdin:
        command = line.strip()
        if command in commands:
            if command == "loop":
                print("null", flush=True)
            print(json.dumps(commands[command]()), flush=True)


main()
