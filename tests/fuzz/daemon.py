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
import logging
import tempfile
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np

from sentineld.base.errors import SentinelError
from sentineld.control.frames import Message
from sentineld.control.server import listen
from sentineld.host.presets import preset_tiers
from sentineld.model import protocol
from sentineld.model.records import OP_ACCESS_DTYPE, SAMPLE_DTYPE, OpAccesses
from sentineld.observe.shimlink import ShimLink
from sentineld.observe.shimserver import ShimServer
from sentineld.plan.cuts import choose_cuts, provisional_layout
from sentineld.plan.layout_wire import pack_layout, unpack_layout
from sentineld.profile.circle import allocation_profile
from sentineld.profile.join import build_profile
from sentineld.profile.steps import Step, cut_count, identical
from sentineld.session.intake.inbox import Inbox
from sentineld.session.intake.sampling import Observing
from sentineld.session.intake.stepfeed import StepFeed
from tests.fuzz.process import PAGE, Process
from tests.fuzz.script import Script, open_descriptors

log = logging.getLogger("sentineld.fuzz")

TURNS_MAX = 200
LOG_RECORDS = 1024
LINE_CHARACTERS_MAX = 1000
TIERS = preset_tiers("cxl", 1)


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
            np.empty(0, SAMPLE_DTYPE),
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
