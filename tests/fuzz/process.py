# SPDX-License-Identifier: Apache-2.0
"""A client of the shims' socket that sends mostly invalid data, chosen by a script (script.py)."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path

import numpy as np

from sentineld.control.frames import FDS_MAX
from sentineld.model import protocol
from sentineld.model.protocol import Event
from sentineld.model.records import RECORD_DTYPE
from tests.fuzz.script import Script, framed, memfd
from tests.hostile.toy_training import ToyTraining
from tests.unit.segment import Writer

RECORDS_MAX = 32
HEAP = 0x10_0000_0000
PAGE = 4096
ANY_SEALS = 0x1F
KINDS = ("hello", "layers", "layout", "accesses", "writes", "note", "bye")
WORDS = tuple(protocol.CONTROL_DTYPE.names or ())


class Process:
    """The client; the script chooses its actions."""

    def __init__(self, script: Script, path: Path) -> None:
        self._script = script
        self._path = path
        self._writer: Writer | None = None
        self._held: list[int] = []
        self._now_ns = 1_000_000
        self._toy: ToyTraining | None = None
        self.connections = 0
        self._connect()

    def act(self) -> None:
        """Do the script's next action."""
        self._script.pick(self.actions())()

    def actions(self) -> tuple[Callable[[], None], ...]:
        """The possible actions."""
        return (
            self._hello,
            self._frame,
            self._frame,
            self._raw,
            self._records,
            self._records,
            self._records,
            self._word,
            self._reconnect,
            self._hang_up,
        )

    def train(self) -> None:
        """Run a step of a training that the daemon can manage. The first call also begins this
        training."""
        with contextlib.suppress(OSError, EOFError):
            if self._toy is None:
                self._toy = ToyTraining(self._path, wait=False)
                self.connections += 1
            self._toy.step()

    def close(self) -> None:
        """Act as an exiting process."""
        self._socket.close()
        if self._toy is not None:
            self._toy.close()
            self._toy = None  # delete its mappings, which hold duplicates of descriptors
        self._drop()

    def _connect(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            self._socket.connect(str(self._path))
        except BlockingIOError:
            return  # the listener's backlog is full
        self.connections += 1

    def _reconnect(self) -> None:
        self._socket.close()
        self._connect()

    def _hang_up(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def _drop(self) -> None:
        for fd in self._held:
            os.close(fd)
        self._held.clear()
        if self._writer is not None:
            os.close(self._writer.fd)
            self._writer = None

    def _send(self, data: bytes, fds: list[int]) -> None:
        with contextlib.suppress(OSError):
            socket.send_fds(self._socket, [data], fds)
        self._read_all()

    def _read_all(self) -> None:
        with contextlib.suppress(OSError):
            while self._socket.recv(1 << 16):
                pass

    def _hello(self) -> None:
        """Send a hello; the script chooses whether it has a mistake, and which one."""
        wrong = self._script.byte() % 8
        version = protocol.SHIM_VERSION
        hello = json.dumps({"type": "hello", "version": version, "pid": os.getpid()})
        if wrong == 1:
            hello = f'{{"type":"hello","version":{self._script.json()}}}'
        self._drop()
        self._writer = Writer()
        self._writer.header["heap_base"] = HEAP
        self._now_ns = 1_000_000
        fds = self._descriptors() if wrong == 2 else [self._writer.fd, self._descriptor(1)]
        self._send(framed(hello.encode()), fds)

    def _frame(self) -> None:
        """Send a message of a known type with random contents."""
        script = self._script
        fields = [f'"type":"{script.pick(KINDS)}"']
        for _ in range(script.byte() % 5):
            name = script.pick(
                ("names", "layout_id", "ok", "error", "step", "way", "text", "count")
            )
            fields.append(f'"{name}":{script.json()}')
        self._send(framed(("{" + ",".join(fields) + "}").encode()), self._descriptors())

    def _raw(self) -> None:
        """Send arbitrary bytes, either as they are or in a well-formed frame."""
        script = self._script
        data = script.take(script.byte())
        if script.byte() % 2:
            data = framed(data)
        self._send(data, self._descriptors())

    def _descriptors(self) -> list[int]:
        script = self._script
        return [self._descriptor(script.byte()) for _ in range(script.byte() % (FDS_MAX + 2))]

    def _descriptor(self, kind: int) -> int:
        """Open a descriptor of the given kind; close() closes it."""
        script = self._script
        openers = (
            lambda: memfd(script.take(script.byte())),
            lambda: os.eventfd(script.byte(), os.EFD_NONBLOCK),
            lambda: os.eventfd(0),
            lambda: os.open("/dev/null", os.O_RDWR),
            lambda: os.open("/dev/zero", os.O_RDONLY),
            lambda: os.open("/", os.O_RDONLY | os.O_DIRECTORY),
            lambda: os.open("/proc/self/pagemap", os.O_RDONLY),
            lambda: os.open("/proc/self/clear_refs", os.O_WRONLY),
            lambda: os.open(__file__, os.O_RDONLY),
            lambda: os.open("/", os.O_PATH),
            self._own_segment,
            self._any_segment,
            self._read_only_segment,
            self._pipe,
            lambda: socket.socket(socket.AF_UNIX, socket.SOCK_STREAM).detach(),
        )
        fd = openers[kind % len(openers)]()
        self._held.append(fd)
        return fd

    def _own_segment(self) -> int:
        """The client's control segment (memory that it shares with the daemon), whose words and
        records the script writes."""
        if self._writer is None:
            self._writer = Writer()
        return os.dup(self._writer.fd)

    def _pipe(self) -> int:
        reading, writing = os.pipe()
        self._held.append(reading)
        return writing

    def _any_segment(self) -> int:
        """A control segment with random seals and words."""
        script = self._script
        whole = Writer()
        seals = script.byte() & ANY_SEALS
        for _ in range(script.byte() % 3):
            whole.header[script.pick(WORDS)] = script.number(4)
        fd = memfd(bytes(whole.map)[: 8192 - (script.byte() & 1)])
        os.close(whole.fd)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
        return fd

    def _read_only_segment(self) -> int:
        writer = Writer()
        fd = os.open(f"/proc/self/fd/{writer.fd}", os.O_RDONLY)
        os.close(writer.fd)
        return fd

    def _word(self) -> None:
        """Write a random value to a random word of the segment."""
        script = self._script
        if self._toy is not None:
            header = self._toy.segment.header
        elif self._writer is not None:
            header = self._writer.header
        else:
            return
        name = script.pick(WORDS)
        size = header.dtype[name].itemsize
        value = script.number(size)
        if script.byte() % 2:  # a value near the old one, with wraparound
            value = (int(header[name][0]) + value % 256 - 128) % (1 << 8 * size)
        header[name] = value

    def _records(self) -> None:
        """Write nearly valid records, perhaps over records that the daemon has not read."""
        script = self._script
        if self._writer is None:
            return
        rows = np.zeros(script.byte() % RECORDS_MAX, RECORD_DTYPE)
        for number, row in enumerate(rows):
            what = script.byte()
            self._now_ns += 1000
            row["time_ns"] = self._now_ns
            row["event"] = what % 6
            row["detail"] = what >> 5
            if row["event"] == Event.STEP:
                row["bytes"] = script.byte()
            elif row["event"] == Event.BOUNDARY:
                row["bytes"], row["value"], row["layer"] = script.take(3).ljust(3, b"\0")
            else:
                row["address"] = HEAP + PAGE * script.byte()
                row["bytes"] = PAGE * script.byte()
                row["value"] = script.pick((script.byte(), protocol.NOT_IN_SEQUENCE))
            if what & 8:
                at = script.byte() % RECORD_DTYPE.itemsize
                rows.view(np.uint8).reshape(len(rows), -1)[number, at] = script.byte()
        # The head is a 64-bit count of records. The script can set it close to 2^64, so the new
        # head can wrap around.
        head = int(self._writer.header["ring_head"][0])
        for number, row in enumerate(rows):
            self._writer.ring[(head + number) % len(self._writer.ring)] = row
        self._writer.header["ring_head"] = (head + len(rows)) % (1 << 64)
