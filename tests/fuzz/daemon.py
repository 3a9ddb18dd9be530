# SPDX-License-Identifier: Apache-2.0
"""Fuzzes the daemon's end of the registration protocol.

The input is a client's actions: bytes and frames with descriptors on the socket, words and records
in its control segment. The server and the socket are real; the work of a session's thread is done
here in turn with the server. Only a SentinelError may result.

Not covered: policies (they see only profiles, in a child process), the kernel module, the mover.
"""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np

from sentineld.base.closing import closing
from sentineld.base.errors import SentinelError
from sentineld.control.frames import Message
from sentineld.control.server import listen
from sentineld.host.presets import preset_tiers
from sentineld.model import protocol
from sentineld.model.records import OP_ACCESS_DTYPE, SAMPLE_DTYPE, OpAccesses
from sentineld.observe.shim_link import ShimLink
from sentineld.observe.shim_server import ShimServer
from sentineld.plan.cuts import choose_cuts, provisional_layout
from sentineld.plan.layout_wire import pack_layout, unpack_layout
from sentineld.profile.attribution import build_profile
from sentineld.profile.lifetimes import allocation_profile
from sentineld.profile.steps import Step, cut_count, identical
from sentineld.session.intake.inbox import Inbox
from sentineld.session.intake.sampling import Observing
from sentineld.session.intake.step_feed import StepFeed
from tests.fuzz.process import PAGE, Process
from tests.fuzz.script import Script, open_descriptors

log = logging.getLogger("sentineld.fuzz")

TURNS_MAX = 200
LOG_RECORDS = 1024
CLOSING_S = 10.0
LINE_CHARACTERS_MAX = 1000
TIERS = preset_tiers("cxl", 1)


class OneLine(logging.Handler):
    """Checks that each log message is one printable line."""

    def emit(self, record: logging.LogRecord) -> None:
        """Raise for an invalid message."""
        line = record.getMessage()
        assert line.isprintable(), f"not one printable line: {line!r}"
        assert len(line) <= LINE_CHARACTERS_MAX, "too long to log"


class Registered:
    """The work of a session's thread with a link, without child processes."""

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

    def on_message(self, message: Message | None, size_bytes: int) -> bool:
        """Same as Session.on_message."""
        self._messages.append(message)
        return True

    def turn(self) -> None:
        """One round of the session's thread; errors are handled as in Session._guarded."""
        while self._messages and not self.ended:
            message = self._messages.popleft()
            if message is None:
                self.end()
                return
            self._guarded(lambda message=message: self._take(message))
        if not self.ended:
            self._guarded(self._steps)

    def begin(self) -> None:
        """Begin to record."""
        self._feed.begin()
        self._before = None
        self._inbox.expect_layout(7)
        self._link.set_flags(on=protocol.Flag.RECORD)

    def end(self) -> None:
        """Same as Driver.end."""
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
        """Make a layout and a profile from an allocation step, as Profiling does."""
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
            np.empty(0, SAMPLE_DTYPE),
            ops,
            self._inbox.layers,
            timed=before,
            heap_base=self._link.segment.heap_base,
        )


class Daemon:
    """One server for all inputs; its event loop runs only in turn()."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="fuzz-")
        self.path = Path(self._directory.name) / "shim.sock"
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(self._on_loop_error)
        self._loop_errors: list[dict[str, Any]] = []
        self.sessions: list[Registered] = []
        self._server = self._loop.run_until_complete(self._serve())

    async def _serve(self) -> ShimServer:
        return ShimServer(listen(self.path, 0o600, None), self._hello)

    def _hello(self, link: ShimLink) -> Any:
        session = Registered(link)
        self.sessions.append(session)
        return session.on_message

    def _on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._loop_errors.append(context)

    def turn(self) -> None:
        """Let the server read its sockets, then run a round of each session."""
        for _ in range(2):  # accepted in the first, read in the second
            self._loop.call_soon(self._loop.stop)
            self._loop.run_forever()
        if self._loop_errors:
            context = self._loop_errors.pop()
            raise AssertionError(f"error in the event loop: {context}") from context.get(
                "exception"
            )
        for session in self.sessions:
            if not session.ended:
                session.turn()

    def begin(self) -> None:
        """Begin to record in all sessions."""
        for session in self.sessions:
            if not session.ended:
                session.begin()

    def forget(self, connections: int) -> None:
        """Check after an input that each session has ended with its connection."""
        for _ in range(connections + 1):  # one connection is accepted per turn
            self.turn()
        assert all(session.ended for session in self.sessions), "a session outlives its connection"
        self.sessions.clear()


class Target:
    """Callable with an input; raises on a failure."""

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
        deadline_s = time.monotonic() + CLOSING_S
        while closing(os.getuid()) and time.monotonic() < deadline_s:
            time.sleep(0.001)
        held = open_descriptors()
        assert held == self._descriptors, f"{held - self._descriptors} descriptors are left open"
