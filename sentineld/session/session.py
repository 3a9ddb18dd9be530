# SPDX-License-Identifier: Apache-2.0
"""A session: one registered process and the thread that serves it.

All work on the process is done by the driver (driver.py) in the session's own
thread. Other threads put commands into that thread's queue; between commands it
checks the process.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from sentineld.base.commands import Backlog, Commands
from sentineld.base.errors import SentinelError
from sentineld.base.units import FastBudget
from sentineld.control.frames import Message
from sentineld.machine.machine import Machine
from sentineld.observe.shim_link import ShimLink
from sentineld.profile.meter import StepMeter
from sentineld.profile.trace import Trace
from sentineld.session.driver import Driver
from sentineld.session.lifecycle import State
from sentineld.session.state import StateFiles
from sentineld.session.work.planning import Goal
from sentineld.session.work.replanning import Replanning

log = logging.getLogger(__name__)

POLL_S = 0.25
RECORDING_POLL_S = 0.05
"""A training fills only a small part of the ring in this time."""
MESSAGES_MAX = 64
MESSAGE_BYTES_MAX = 16 << 20
"""Messages of a process that may wait, while a plan is made for example. A shim sends about one a
step while it is profiled and else hardly any; then its connection is not read any further."""
FAILURES_MAX = 100
"""Errors in one session after which it ends: each writes to the log."""


class Session:
    """A registered process. Public methods may be called from any thread."""

    def __init__(self, link: ShimLink, machine: Machine, states: StateFiles) -> None:
        self.link = link
        self.machine = machine
        self._driver = Driver(link, machine, states, self._mover_ended)
        self.name = self._driver.name
        self.lifecycle = self._driver.lifecycle
        self.observing = self._driver.observing
        self.following = self._driver.following
        self.last_meter: StepMeter | None = None
        self._commands = Commands()
        self._backlog = Backlog(MESSAGES_MAX, MESSAGE_BYTES_MAX, lambda: link.on_room())
        self._failures = 0
        self._thread = threading.Thread(target=self._run, name=f"session-{link.pid}", daemon=True)

    @property
    def goal(self) -> Goal | None:
        """The goal of the last attach."""
        return self._driver.goal

    def start(self) -> None:
        """Begin to serve the session."""
        self.link.segment.set_barrier_timeout(self.machine.config.barrier_timeout_ms * 1_000_000)
        self.link.beat()
        self._thread.start()

    def beat(self) -> None:
        """Refresh the heartbeat that barriers in the process rely on."""
        if self.lifecycle.state is not State.ENDED:
            self.link.beat()

    def on_message(self, message: Message | None, size_bytes: int) -> bool:
        """Take a message of the shim; None: its connection is closed. size_bytes: of its frame.

        Returns whether to read on; if not, link.on_room() is called when there is room again.
        """
        if message is None:
            self.end("the process closed its connection")
            return False

        def take() -> None:
            try:
                self._driver.take(message)
            finally:
                self._backlog.remove(size_bytes)

        go_on = self._backlog.add(size_bytes)
        self._commands.put(take)
        return go_on

    def attach(self, fast: FastBudget | None, policy_name: str | None) -> None:
        """Begin to manage, or switch a managed process to another budget or policy.

        Switching blocks until the new plan is made; if planning fails, the live plan stays.
        None: the managed process's current value, or else the configuration's. Raises
        SentinelError.
        """
        self._wait_entered()
        replanning: Replanning | None = self._call(lambda: self._driver.attach(fast, policy_name))
        if replanning is not None:
            replanning.wait()

    def detach(self) -> None:
        """Stop managing; the process runs on. Raises SentinelError."""
        self._call(self._driver.detach)

    def meter(self, steps: int) -> list[StepMeter]:
        """Meter managed steps; blocks. Raises SentinelError."""
        self._wait_entered()
        metered: list[StepMeter] = self._call(lambda: self._driver.meter(steps)).wait()
        self.last_meter = metered[-1]
        return metered

    def record(self, steps: int) -> Trace:
        """Record steps and then one whose accesses are sampled; blocks. Raises SentinelError."""
        self._wait_entered()
        trace: Trace = self._call(lambda: self._driver.record(steps)).wait()
        return trace

    def _wait_entered(self) -> None:
        """Wait while another plan replaces the live one: callers see one managed state."""
        while self.lifecycle.state is State.ENTERING and self.following.managed is not None:
            time.sleep(RECORDING_POLL_S)

    def end(self, reason: str) -> None:
        """Release the process and end the session."""
        self._commands.put(lambda: self._driver.end(reason))

    def _mover_ended(self, reason: str) -> None:
        self._commands.put(lambda: self._driver.mover_ended(reason))

    def close(self) -> None:
        """Begin to release the process but keep its state files, for the next daemon."""
        self._driver.keeps_files = True
        self.end("the daemon stops")

    def join(self, timeout_s: float) -> None:
        """Wait until the process is released."""
        self._thread.join(timeout_s)

    def not_yet(self, what: str) -> SentinelError:
        """The error for a verb that the current state does not allow."""
        return self._driver.not_yet(what)

    def _call(self, function: Callable[[], Any]) -> Any:
        try:
            return self._commands.call(function, lambda: self._driver.ended)
        except EOFError:
            raise self.not_yet("can't be reached") from None
        except OSError as error:
            raise SentinelError(
                "busy",
                f"process {self.link.pid} can't be served now: {error}",
                "try again; LimitNOFILE and TasksMax of the daemon's unit may be too low",
            ) from None

    # The session's thread.

    def _run(self) -> None:
        driver = self._driver
        try:
            self._guarded(driver.resume)
            while not driver.ended:
                wait_s = RECORDING_POLL_S if driver.recording else POLL_S
                self._guarded(self._commands.get(wait_s) or driver.turn)
        except Exception:
            log.exception("session %d ends: internal error", self.link.pid)
            with contextlib.suppress(Exception):
                # It releases everything even if a part of that fails.
                driver.end("internal error of the daemon")

    def _guarded(self, act: Callable[[], None]) -> None:
        """Call act(); errors of the process or the plan end the management or the session."""
        try:
            act()
        except SentinelError as error:
            self._fail(str(error))
        except EOFError:
            self._driver.end("the process does not read its socket")
        except ProcessLookupError:
            # The module and move_pages may notice the exit before the next check of the pidfd.
            self._driver.end("the process exited")
        except OSError as error:
            # Of the daemon, such as EMFILE: the process is not to blame and stays registered.
            self._fail(f"the daemon can't go on with it: {error}")

    def _fail(self, reason: str) -> None:
        """End the management, and the session of a process that fails again and again."""
        log.warning("process %d is not managed: %s", self.link.pid, reason)
        self._failures += 1
        if self._failures > FAILURES_MAX:
            self._driver.end(f"it has failed {self._failures} times; the last time: {reason}")
        else:
            self._driver.unmanage(reason)
