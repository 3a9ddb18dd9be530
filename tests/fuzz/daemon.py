# SPDX-License-Identifier: Apache-2.0
"""The daemon's end of the registration protocol, with any process at the other end.

The input is what a process does: bytes and frames on the socket with any
descriptors, words and records in its control segment. The daemon's end is the
real server on a real socket; what a session's thread does with messages and
steps is done here in turn with it: nothing but a SentinelError may come of it.

Not covered: policies (they see only profiles, in a child process), the kernel
module, and the mover; what a process can make of those is tested elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import socket
import struct
import tempfile
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np

from sentineld.control.frames import FDS_MAX, Message
from sentineld.control.server import ShimServer, listen
from sentineld.errors import SentinelError
from sentineld.inbox import Inbox
from sentineld.observe.model import OP_ACCESS_DTYPE, RECORD_DTYPE, OpAccesses
from sentineld.observe.shimlink import ShimLink
from sentineld.plan.cuts import choose_cuts, provisional_layout
from sentineld.plan.layout_wire import pack_layout, unpack_layout
from sentineld.presets import preset_tiers
from sentineld.profile.circle import allocation_profile
from sentineld.profile.join import build_profile
from sentineld.profile.steps import Step, cut_count, identical
from sentineld.sampling import Observing
from sentineld.shim import protocol
from sentineld.shim.protocol import Event
from sentineld.stepfeed import StepFeed
from tests.fuzz.script import Script, memfd, open_descriptors
from tests.unit.segment import Writer

log = logging.getLogger("sentineld.fuzz")

TURNS_MAX = 200
RECORDS_MAX = 32
LOG_RECORDS = 1024
LINE_CHARACTERS_MAX = 1000
HEAP = 0x10_0000_0000
PAGE = 4096
TIERS = preset_tiers("cxl", 1)
KINDS = ("hello", "layers", "layout", "accesses", "writes", "note", "bye")
ANY_SEALS = 0x1F
WORDS = tuple(protocol.CONTROL_DTYPE.names or ())


class OneLine(logging.Handler):
    """What the daemon logs is read by people, and by whoever searches for its lines."""

    def emit(self, record: logging.LogRecord) -> None:
        """Raise for what is no line."""
        said = record.getMessage()
        assert said.isprintable(), f"no line to log: {said!r}"
        assert len(said) <= LINE_CHARACTERS_MAX, "too long to log"


class Registered:
    """What a session's thread does with a link, as far as no other process is asked for it."""

    def __init__(self, link: ShimLink) -> None:
        self._link = link
        self._observing = Observing(link, LOG_RECORDS)
        self._inbox = Inbox(link, self._observing)
        self._feed = StepFeed(link.segment)
        self._messages: deque[Message | None] = deque()
        self._before: Step | None = None
        self._accesses: OpAccesses | None = None
        self.ended = False
        link.beat()

    def on_message(self, message: Message | None) -> None:
        """As Session.on_message."""
        self._messages.append(message)

    def turn(self) -> None:
        """One round of the session's thread; an error ends what it does, as Session._guarded."""
        while self._messages and not self.ended:
            message = self._messages.popleft()
            if message is None:
                self.end()
                return
            self._guarded(lambda message=message: self._take(message))
        if not self.ended:
            self._guarded(self._steps)

    def begin(self) -> None:
        """Recording begins."""
        self._feed.begin()
        self._before = None
        self._inbox.expect_layout(7)
        self._link.set_flags(on=protocol.Flag.RECORD)

    def end(self) -> None:
        """As Session._end."""
        self.ended = True
        self._observing.close()
        self._link.close()

    def _guarded(self, act: Any) -> None:
        try:
            act()
        except SentinelError as error:
            log.warning("process %d is not managed: %s", self._link.pid, error)
            try:
                self._link.send({"type": "detach"})
            except EOFError:
                self.end()

    def _take(self, message: Message) -> None:
        accesses = self._inbox.take(message)
        if accesses is not None:
            self._accesses = accesses

    def _steps(self) -> None:
        self._link.segment.words()
        self._link.segment.position()
        self._link.clear_event()
        for step in self._feed.steps():
            before, self._before = self._before, step
            if before is not None and identical(before, step):
                self._profile(before, step)

    def _profile(self, before: Step, step: Step) -> None:
        """From an allocation step to a layout and a profile, as Profiling."""
        rough = allocation_profile(step, self._inbox.layers)
        cuts = choose_cuts(step, max(rough.peak_bytes // 5, PAGE))
        layout = provisional_layout(step, cuts)
        unpack_layout(pack_layout(layout, 7, TIERS, len(layout.waits)))
        cut_count(step)
        ops = np.empty(0, OP_ACCESS_DTYPE)
        if self._accesses is not None and self._accesses.step == step.number:
            ops = self._accesses.rows
        build_profile(
            step,
            np.empty(0, protocol.RECORD_DTYPE),
            ops,
            self._inbox.layers,
            timed=before,
            heap_base=self._link.segment.heap_base,
        )


class Daemon:
    """One server for all inputs, in a loop that turns only when told."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="fuzz-")
        self.path = Path(self._directory.name) / "shim.sock"
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(self._surprised)
        self._surprises: list[dict[str, Any]] = []
        self.sessions: list[Registered] = []
        self._server = self._loop.run_until_complete(self._serve())

    async def _serve(self) -> ShimServer:
        return ShimServer(listen(self.path, 0o600, None), self._hello)

    def _hello(self, link: ShimLink) -> Any:
        session = Registered(link)
        self.sessions.append(session)
        return session.on_message

    def _surprised(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._surprises.append(context)

    def turn(self) -> None:
        """Let the server take what came, then every session."""
        for _ in range(2):  # what is accepted in one is read in the next
            self._loop.call_soon(self._loop.stop)
            self._loop.run_forever()
        if self._surprises:
            context = self._surprises.pop()
            raise AssertionError(f"the loop met {context}") from context.get("exception")
        for session in self.sessions:
            if not session.ended:
                session.turn()

    def begin(self) -> None:
        """Begin to record every session."""
        for session in self.sessions:
            if not session.ended:
                session.begin()

    def forget(self, connections: int) -> None:
        """After an input: every session must have ended with its connection."""
        for _ in range(connections + 1):  # one is accepted at a time
            self.turn()
        assert all(session.ended for session in self.sessions), "a session outlives its process"
        self.sessions.clear()


class Process:
    """The other end: whatever the script says."""

    def __init__(self, script: Script, path: Path) -> None:
        self._script = script
        self._path = path
        self._writer: Writer | None = None
        self._held: list[int] = []
        self._now_ns = 1_000_000
        self.connections = 0
        self._connect()

    def act(self) -> None:
        """The script's next act."""
        script = self._script
        script.pick(
            (
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
        )()

    def close(self) -> None:
        """The process exits."""
        self._socket.close()
        self._drop()

    def _connect(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(str(self._path))
        self.connections += 1
        self._socket.setblocking(False)

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
        """One that is accepted, unless the script says what is wrong with it."""
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
        self._send(_framed(hello.encode()), fds)

    def _frame(self) -> None:
        """A message of a kind that there is, with any contents."""
        script = self._script
        fields = [f'"type":"{script.pick(KINDS)}"']
        for _ in range(script.byte() % 5):
            name = script.pick(
                ("names", "layout_id", "ok", "error", "step", "way", "text", "count")
            )
            fields.append(f'"{name}":{script.json()}')
        self._send(_framed(("{" + ",".join(fields) + "}").encode()), self._descriptors())

    def _raw(self) -> None:
        """Bytes, or a frame of bytes."""
        script = self._script
        data = script.take(script.byte())
        if script.byte() % 2:
            data = _framed(data)
        self._send(data, self._descriptors())

    def _descriptors(self) -> list[int]:
        script = self._script
        return [self._descriptor(script.byte()) for _ in range(script.byte() % (FDS_MAX + 2))]

    def _descriptor(self, kind: int) -> int:
        """One of a kind, closed with the process."""
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
        """The one whose words and records the script writes."""
        if self._writer is None:
            self._writer = Writer()
        return os.dup(self._writer.fd)

    def _pipe(self) -> int:
        reading, writing = os.pipe()
        self._held.append(reading)
        return writing

    def _any_segment(self) -> int:
        """A control segment with any seals and any words."""
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
        """Any word of the segment, any value."""
        script = self._script
        if self._writer is None:
            return
        name = script.pick(WORDS)
        size = self._writer.header.dtype[name].itemsize
        value = script.number(size)
        if script.byte() % 2:  # near what it is, wrapping as the process's own arithmetic would
            value = (int(self._writer.header[name][0]) + value % 256 - 128) % (1 << 8 * size)
        self._writer.header[name] = value

    def _records(self) -> None:
        """Records of a training, each nearly right; there may be more than the ring holds."""
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
        # numpy adds the head to the count as the process might: past 2^64 it begins again.
        head = int(self._writer.header["ring_head"][0])
        for number, row in enumerate(rows):
            self._writer.ring[(head + number) % len(self._writer.ring)] = row
        self._writer.header["ring_head"] = (head + len(rows)) % (1 << 64)


class Target:
    """Callable with an input; raises for what must not happen."""

    def __init__(self) -> None:
        logger = logging.getLogger("sentineld")
        logger.addHandler(OneLine())
        logger.setLevel(logging.INFO)
        logger.propagate = False
        self._daemon = Daemon()
        self._descriptors = open_descriptors()

    def __call__(self, data: bytes) -> None:
        """Run one input."""
        daemon, script = self._daemon, Script(data)
        process = Process(script, daemon.path)
        try:
            for _ in range(TURNS_MAX):
                if not script.left():
                    break
                process.act()
                if script.byte() % 4:
                    daemon.turn()
                if script.byte() % 8 == 0:
                    daemon.begin()
        finally:
            process.close()
        daemon.forget(process.connections)
        held = open_descriptors()
        assert held == self._descriptors, f"{held - self._descriptors} descriptors are left open"


def _framed(body: bytes) -> bytes:
    return struct.pack("<I", len(body)) + body
