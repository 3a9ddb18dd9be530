# SPDX-License-Identifier: Apache-2.0
"""Observes accessor.py with one backend; prints one JSON object. Usage: observe.py BACKEND.

A window is the time between begin() and end() of the backend's watch. If the backend measures
frequency, the accesses are repeated throughout each window; otherwise they are made once in each
window.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from chunks import CHUNK_BYTES, CHUNK_PAGES, CHUNKS, PAGE, Chunk

from sentineld.migrate.syscalls import move_pages
from sentineld.model.records import ACCESS_BIRTH, ACCESS_WRITE
from sentineld.observe.backend import Areas, Target
from sentineld.observe.backends import BACKENDS
from sentineld.observe.peer import Peer
from sentineld.observe.pidfd import Pidfd
from sentineld.observe.writefds import ReceivedWriteFds, WriteFds
from sentineld.shim import writes

LOOP_S = 5.0


class Program:
    """The process that runs accessor.py; it executes one command at a time."""

    def __init__(self, way: str) -> None:
        ours, theirs = socket.socketpair()
        command = [sys.executable, str(Path(__file__).with_name("accessor.py"))]
        self.process = subprocess.Popen(
            [*command, str(theirs.fileno()), *([way] if way else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[theirs.fileno()],
            text=True,
        )
        theirs.close()
        self.start = int(self.receive()["start"])
        self.writes: WriteFds | None = None
        if way:
            _, fds, _, _ = socket.recv_fds(ours, 16, 2)
            peer = Peer(self.process.pid, os.getuid(), os.getgid(), Pidfd(self.process.pid))
            self.writes = ReceivedWriteFds(peer, way, fds).take()
            peer.close()

    def receive(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def send(self, command_name: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{command_name}\n")
        self.process.stdin.flush()

    def do(self, command_name: str) -> Any:
        self.send(command_name)
        return self.receive()


def main(name: str) -> None:
    backend = next(one for one in BACKENDS if one.name == name)
    program = Program(name if name in (writes.SCAN, writes.SOFT_DIRTY) else "")
    start = program.start
    program.do("prepare")
    slow = np.arange(CHUNK_PAGES, dtype=np.uint64) * PAGE + start + Chunk.SLOW * CHUNK_BYTES
    moved = move_pages(program.process.pid, slow, 1)
    problem = backend.probe()
    assert problem is None, problem
    watch = backend.open(Target(program.process.pid, writes=program.writes))
    windows = []
    for _ in range(2):
        watch.begin([(start, CHUNKS * CHUNK_BYTES)])
        if backend.capabilities.frequency:
            program.do("loop")
            end_s = time.monotonic() + LOOP_S
            while time.monotonic() < end_s:
                watch.poll()
            areas = watch.end()
            program.do("stop")
        else:
            program.do("once")
            areas = watch.end()
        windows.append(describe(areas, start))
    # a third window, without accesses
    watch.begin([(start, CHUNKS * CHUNK_BYTES)])
    idle = describe(watch.end(), start)
    watch.close()
    watch.close()
    program.do("once")
    sums = program.do("check")
    watch_gone = gone(backend, program)
    print(
        json.dumps(
            {
                "moved": int(np.count_nonzero(moved.status == 1)),
                "windows": windows,
                "idle": idle,
                "sums": sums,
                "gone": watch_gone,
            }
        )
    )


def gone(backend: Any, program: Program) -> str:
    """The name of the exception that a watch raises after its process was killed, or "nothing"."""
    if program.writes is not None:
        program.process.kill()
        program.process.wait()
        program = Program(backend.name)
    watch = backend.open(Target(program.process.pid, writes=program.writes))
    watch.begin([(program.start, CHUNKS * CHUNK_BYTES)])
    program.process.kill()
    program.process.wait()
    try:
        watch.end()
        watch.begin([(program.start, CHUNKS * CHUNK_BYTES)])
        watch.end()
    except ProcessLookupError:
        return "ProcessLookupError"
    finally:
        watch.close()
    return "nothing"


def describe(areas: Areas, start: int) -> dict[str, Any]:
    """Return for each chunk (see chunks.py): the numbers of its reported, written and born pages,
    the nodes of the reported pages, and the mean heat (see Areas) of all its pages. "elsewhere" is
    the number of reported pages outside all chunks."""
    first = (areas["start"].astype(np.int64) - start) // PAGE
    count = areas["bytes"].astype(np.int64) // PAGE
    page = np.concatenate(
        [np.empty(0, np.int64), *(np.arange(a, a + n) for a, n in zip(first, count, strict=True))]
    )
    area = np.repeat(np.arange(len(areas)), count)
    flags, heat, node = areas["flags"][area], areas["heat"][area], areas["node"][area]
    found: dict[str, Any] = {
        "elsewhere": int(np.count_nonzero((page < 0) | (page >= CHUNKS * CHUNK_PAGES)))
    }
    assert len(np.unique(page)) == len(page), "areas overlap"
    for chunk in Chunk:
        mine = page // CHUNK_PAGES == chunk
        found[chunk.name] = {
            "pages": int(np.count_nonzero(mine)),
            "written": int(np.count_nonzero(mine & (flags & ACCESS_WRITE != 0))),
            "born": int(np.count_nonzero(mine & (flags & ACCESS_BIRTH != 0))),
            "nodes": sorted({int(one) for one in node[mine]}),
            "heat": float(heat[mine].sum()) / CHUNK_PAGES,
        }
    return found


main(sys.argv[1])
