# SPDX-License-Identifier: Apache-2.0
"""A process with known accesses for the eBPF probes, and the class that controls it.

The process runs this file as a script. It executes one command at a time on its region, a
private mapping of PAGES + BURST_PAGES pages.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import mmap
import os
import socket
import subprocess
import sys
import time

import numpy as np

from sentineld.observe import uapi

PAGE = mmap.PAGESIZE
PAGES = 4096
BURST_PAGES = 40_000
"""Additional pages; touching all of them causes more faults than the ring of ebpf.py holds."""

MOVE_PAGES, VMSPLICE = 279, 278
"""System call numbers of x86-64."""

UNSET_STATUS = -9999

libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """The observed process: reads JSON commands from its socket and replies to each."""
    region = mmap.mmap(-1, (PAGES + BURST_PAGES) * PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    region.madvise(mmap.MADV_NOHUGEPAGE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(region))
    commands = socket.socket(fileno=os.dup(0))
    epoch_fd = -1
    pipe = os.pipe()
    commands.send(json.dumps(address).encode())
    while True:
        message, fds, _, _ = socket.recv_fds(commands, 4096, 1)
        if not message:
            return
        verb, first, last = json.loads(message)
        answer = 0
        if verb == "write":
            for page in range(first, last):
                region[page * PAGE] = 1
        elif verb == "read":
            for page in range(first, last):
                answer += region[page * PAGE]
        elif verb == "fill":
            # the kernel writes, so the faults are taken in kernel mode
            with open("/dev/zero", "rb", buffering=0) as zeroes:
                answer = zeroes.readinto(memoryview(region)[first * PAGE : last * PAGE])
        elif verb == "spin":
            # here `first` is a number of pages and `last` is a time in ms: write to the region's
            # first pages repeatedly for this time
            deadline = time.monotonic() + last / 1e3
            while time.monotonic() < deadline:
                for page in range(first):
                    region[page * PAGE] = 1
        elif verb == "huge":
            region.madvise(mmap.MADV_HUGEPAGE)
        elif verb == "pin":
            # a pipe holds references to the pages, as a device does during a transfer
            vector = (ctypes.c_uint64 * 2)(address + first * PAGE, (last - first) * PAGE)
            answer = libc.syscall(VMSPLICE, pipe[1], vector, 1, 0)
        elif verb == "epoch_fd":
            epoch_fd = fds[0]
        elif verb == "epoch":
            epoch = uapi.Epoch()
            fcntl.ioctl(epoch_fd, uapi.IOC_EPOCH, epoch)
            answer = epoch.epoch
        commands.send(json.dumps(answer).encode())


class Target:
    """Starts the observed process and sends commands to it."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen([sys.executable, __file__], stdin=theirs.fileno())
        self.pid = self._process.pid
        self.address: int = json.loads(self._socket.recv(4096))

    def do(self, verb: str, first: int = 0, last: int = 0, fds: tuple[int, ...] = ()) -> int:
        """Run one command in the process; returns its reply."""
        socket.send_fds(self._socket, [json.dumps([verb, first, last]).encode()], list(fds))
        answer: int = json.loads(self._socket.recv(4096))
        return answer

    def end(self) -> None:
        """End the process."""
        self._socket.close()
        self._process.wait()

    def move(self, first: int, last: int, node: int) -> dict[str, int]:
        """Call move_pages() on some pages; returns its result and how many pages are then on the
        node."""
        count = last - first
        addresses = self.address + np.arange(first, last, dtype=np.uint64) * PAGE
        nodes = np.full(count, node, dtype=np.int32)
        status = np.full(count, UNSET_STATUS, dtype=np.int32)
        pointers = [ctypes.c_void_p(array.ctypes.data) for array in (addresses, nodes, status)]
        returned = libc.syscall(MOVE_PAGES, self.pid, ctypes.c_ulong(count), *pointers, 2)
        return {"returned": returned, "arrived": int((status == node).sum())}


if __name__ == "__main__":
    main()
