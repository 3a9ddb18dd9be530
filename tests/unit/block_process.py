# SPDX-License-Identifier: Apache-2.0
"""A process that has a block of anonymous memory and executes statements that a test sends."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from sentineld.observe.pidfd import children

MIB = 1 << 20
BLOCK_BYTES = 8 * MIB
PROGRAM = f"""
import ctypes, mmap, sys
libc = ctypes.CDLL(None)
block = mmap.mmap(-1, {BLOCK_BYTES}, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
block[:] = bytes([1]) * len(block)
address = ctypes.addressof(ctypes.c_char.from_buffer(block))
print(address, flush=True)
for line in sys.stdin:
    exec(line)
    print(flush=True)
"""


class BlockProcess:
    """The running process."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.address = int(self.process.stdout.readline())
        self.pid = self.process.pid
        self._ended = False

    def run(self, statement: str) -> None:
        """Execute a statement, which can use `libc`, `block` and `address`."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(statement + "\n")
        self.process.stdin.flush()
        self.process.stdout.readline()

    def end_main_thread(self) -> None:
        """End the main thread; another thread continues, until the process is killed."""
        self.run("import threading; threading.Thread(target=libc.pause, daemon=True).start()")
        assert self.process.stdin is not None
        self.process.stdin.write("libc.pthread_exit(None)\n")
        self.process.stdin.flush()
        self._ended = True

    def close(self) -> None:
        """End the process and wait for it."""
        if self._ended:
            self.process.kill()
        self.process.communicate()


@contextmanager
def block_process() -> Iterator[BlockProcess]:
    """Run the process."""
    started = BlockProcess()
    try:
        yield started
    finally:
        started.close()


@contextmanager
def child_in_same_memory(process: BlockProcess) -> Iterator[int]:
    """A child that shares the process's address space, as after vfork(); yields the child's process
    ID. The child waits until it is killed, and the process continues meanwhile."""
    process.run("stack = ctypes.create_string_buffer(1 << 16)")
    process.run("top = ctypes.c_void_p(ctypes.addressof(stack) + len(stack))")
    process.run("pause = ctypes.cast(libc.pause, ctypes.c_void_p)")
    process.run("libc.clone(pause, top, 0x100 | 17, None)  # CLONE_VM | SIGCHLD")
    (child,) = children(process.pid)
    try:
        yield child
    finally:
        os.kill(child, 9)
