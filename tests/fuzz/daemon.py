# SPDX-License-Identifier: Apache-2.0
"""Fuzzes the daemon's end of the shim's protocol (docs/reference/protocol.md).

The input is a client's actions: bytes and frames (each a length and as many bytes) with descriptors
on the socket, words and records in the control segment (memory that the client shares with the
daemon), and steps of a training that the daemon can manage. The server, the sessions with their
plans, the movers and the residency of emulated tiers are the daemon's real code. Only the sessions'
threads and the planning processes are replaced: the fuzz target itself calls their code,
alternately with the server's. Any exception other than SentinelError is a failure.

Not covered: the kernel module, and moves of real pages.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sentineld.service.sessions as service
from sentineld.base.errors import SentinelError
from sentineld.base.units import FastBudget
from sentineld.config import Config, TierOverrides
from sentineld.control.server import listen
from sentineld.machine.choose import substrate_of
from sentineld.machine.machine import Machine
from sentineld.observe.shim_link import ShimLink
from sentineld.observe.shim_server import ShimServer
from sentineld.session.session import Session
from sentineld.session.state import StateFiles
from tests.fuzz.planning import plan_in_this_process
from tests.fuzz.process import Process
from tests.fuzz.script import Script, open_descriptors

TURNS_MAX = 200
LINE_CHARACTERS_MAX = 1000
POLICIES = ("static", "sentinel", "fast-only", "slow-only")
BUDGETS = ("20%", "50%", "4MiB")
SETTLE_S = 10.0
CONFIG = Config(
    # These figures are fixed, because measured ones would differ from run to run. The migration
    # bandwidth is high, so that an input does not wait long for its moves.
    tiers=TierOverrides(emulated="cxl", migration_bytes_per_s=1e12, birth_ns_per_byte=0.1),
    barrier_timeout_ms=1,
)


class OneLine(logging.Handler):
    """Checks that each log message is one printable line."""

    def emit(self, record: logging.LogRecord) -> None:
        """Raise AssertionError unless the message is one printable line of a limited length."""
        line = record.getMessage()
        assert line.isprintable(), f"not one printable line: {line!r}"
        assert len(line) <= LINE_CHARACTERS_MAX, "too long to log"


class NoThread:
    """Replaces a session's thread."""

    def start(self) -> None:
        """Do nothing: the session runs in turn()."""

    def join(self, timeout: float | None = None) -> None:
        """Do nothing."""


class TurnedSession(Session):
    """A session without a thread: the fuzz target calls turn(), which does the thread's work."""

    def __init__(self, *arguments: Any) -> None:
        """arguments: see Session."""
        super().__init__(*arguments)
        self._thread = NoThread()  # type: ignore[assignment]
        self._resumed = False

    @property
    def ended(self) -> bool:
        """Whether the session has ended."""
        return self._driver.ended

    def turn(self) -> None:
        """Carry out all queued commands, then call turn() of the session's Driver; replaces
        Session._run(). Raises the errors that Session._guarded() does not handle."""
        driver = self._driver
        if not self._resumed:
            if isinstance(self._before, TurnedSession) and not self._before.ended:
                return
            self._before = None
            self._resumed = True
            self._guarded(self._resuming.begin)
        while not driver.ended and (command := self._commands.get(0)) is not None:
            self._guarded(command)
        if not driver.ended:
            self._guarded(driver.turn)

    def begin_attach(self, policy: str, budget: str) -> None:
        """Attach, or attach again, without waiting for the result."""
        self._driver_call(lambda: self._driver.attach(FastBudget.parse(budget), policy))

    def begin_meter(self) -> None:
        """Begin to meter a step."""
        self._driver_call(lambda: self._driver.meter(1))

    def begin_detach(self) -> None:
        """Detach."""
        self._driver_call(self._driver.detach)

    def _driver_call(self, act: Callable[[], object]) -> None:
        """Queue act() as a command, which turn() then carries out. A SentinelError that act()
        raises is ignored; Commands.call() would pass it to the caller."""

        def command() -> None:
            with contextlib.suppress(SentinelError):
                act()

        self._commands.put(command)


class Daemon:
    """One server for all inputs; its event loop runs only in turn()."""

    def __init__(self, config: Callable[[Path], Config]) -> None:
        """config: returns the configuration; its argument is a folder for files."""
        self._directory = tempfile.TemporaryDirectory(prefix="fuzz-")
        folder = Path(self._directory.name)
        self.path = folder / "shim.sock"
        self._state = folder / "state"
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(self._on_loop_error)
        self._errors: list[BaseException | dict[str, Any]] = []
        threading.excepthook = self._on_thread_error
        plan_in_this_process()
        service.Session = TurnedSession  # type: ignore[misc]
        configured = config(folder)
        substrate = substrate_of(configured)
        machine = Machine(configured, substrate, substrate.tiers(), [])
        self._table = service.Sessions(machine, StateFiles(self._state))
        self.sessions: list[TurnedSession] = []
        self._server = self._loop.run_until_complete(self._serve())

    async def _serve(self) -> ShimServer:
        return ShimServer(listen(self.path, 0o600, None), self._hello)

    def _hello(self, link: ShimLink) -> Any:
        receive = self._table.hello(link)
        # The fuzz target needs all sessions of an input. The table holds one session per process,
        # and all these sessions belong to this process, so the table keeps only the newest.
        self.sessions.append(receive.__self__)  # type: ignore[attr-defined]
        return receive

    def _on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._errors.append(context)

    def _on_thread_error(self, error: threading.ExceptHookArgs) -> None:
        self._errors.append(error.exc_value or AssertionError(str(error.exc_type)))

    def turn(self) -> None:
        """Let the server read its sockets, then call turn() of each session."""
        for _ in range(2):  # the first pass accepts connections, the second reads from them
            self._loop.call_soon(self._loop.stop)
            self._loop.run_forever()
        for session in self.sessions:
            if not session.ended:
                session.turn()
        self._table.beat()
        self._table.status(0)
        self._raise()

    def _raise(self) -> None:
        """Raise the error of a callback or of a mover's thread."""
        if not self._errors:
            return
        error = self._errors.pop()
        self._errors.clear()
        if isinstance(error, BaseException):
            raise error
        raise AssertionError(f"error in the event loop: {error}") from error.get("exception")

    def begin(self, choice: int) -> None:
        """Send attach, meter or detach to all sessions; `choice` selects the verb and arguments."""
        for session in self.sessions:
            if session.ended:
                continue
            if choice % 8 == 7:
                session.begin_meter()
            elif choice % 8 == 6:
                session.begin_detach()
            else:
                policy = POLICIES[choice % len(POLICIES)]
                session.begin_attach(policy, BUDGETS[choice // 8 % len(BUDGETS)])

    def forget(self, connections: int) -> None:
        """Check after an input that each session ends with its connection."""
        for _ in range(connections + 1):  # enough turns to accept all connections
            self.turn()
        deadline_s = time.monotonic() + SETTLE_S
        while not all(session.ended for session in self.sessions):
            assert time.monotonic() < deadline_s, "a session outlives its connection"
            self.turn()
        assert not self._table.all(), "the table keeps an ended session"
        self.sessions.clear()
        # The next input simulates another process, which must not find the state files of this
        # input's process. Both processes have the same pid and start time, so the files have the
        # same names.
        shutil.rmtree(self._state, ignore_errors=True)


class Target:
    """The fuzz target: called with each input, it raises an exception on a failure."""

    process: type[Process] = Process

    @staticmethod
    def config(folder: Path) -> Config:
        """The daemon's configuration."""
        return CONFIG

    def __init__(self) -> None:
        logger = logging.getLogger("sentineld")
        logger.addHandler(OneLine())
        logger.setLevel(logging.INFO)
        logger.propagate = False
        self._daemon = Daemon(self.config)
        self._descriptors = open_descriptors()

    def __call__(self, data: bytes) -> None:
        """Run one input."""
        daemon, script = self._daemon, Script(data)
        process = self.process(script, daemon.path)
        try:
            for _ in range(TURNS_MAX):
                if not script.left():
                    break
                process.act()
                if script.byte() % 4:
                    daemon.turn()
                choice = script.byte()
                if choice % 8 == 0:
                    daemon.begin(choice // 8)
                elif choice % 8 == 7:
                    for _ in range(choice // 8):
                        process.train()
                        daemon.turn()
        finally:
            process.close()
        daemon.forget(process.connections)
        self._require_descriptors()

    def _require_descriptors(self) -> None:
        """Check that no descriptor is left open. Waits, because threads and timers close some
        descriptors late."""
        deadline_s = time.monotonic() + SETTLE_S
        while held := open_descriptors() - self._descriptors:
            assert time.monotonic() < deadline_s, f"{held} descriptors are left open"
            time.sleep(0.01)
            self._daemon.turn()
            gc.collect()  # a mapping in a reference cycle keeps its descriptor open
