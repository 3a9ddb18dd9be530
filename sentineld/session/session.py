# SPDX-License-Identifier: Apache-2.0
"""A session: one registered process and the thread that serves it.

All work on the process is done by the driver (driver.py) in the session's own
thread. Other threads put commands into that thread's queue; between commands it
checks the process.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from sentineld.base.commands import Commands
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


class Session:
    """A registered process. Public methods may be called from any thread."""

    def __init__(self, link: ShimLink, machine: Machine, states: StateFiles) -> None:
        self.link = link
        self.machine = machine
        self._driver = Driver(link, machine, states, self.end)
        self.name = self._driver.name
        self.lifecycle = self._driver.lifecycle
        self.observing = self._driver.observing
        self.following = self._driver.following
        self.last_meter: StepMeter | None = None
        self._commands = Commands()
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

    def on_message(self, message: Message | None) -> None:
        """Take a message of the shim; None: its connection is closed."""
        if message is None:
            self.end("the process closed its connection")
        else:
            self._commands.put(lambda: self._driver.take(message))

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

    def close(self) -> None:
        """Release the process but keep its state files, for the next daemon."""
        self._driver.keeps_files = True
        self.end("the daemon stops")
        self._thread.join(timeout=10)

    def not_yet(self, what: str) -> SentinelError:
        """The error for a verb that the current state does not allow."""
        return self._driver.not_yet(what)

    def _call(self, function: Callable[[], Any]) -> Any:
        try:
            return self._commands.call(function, lambda: self._driver.ended)
        except EOFError:
            raise self.not_yet("can't be reached") from None

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
            driver.end("internal error of the daemon")

    def _guarded(self, act: Callable[[], None]) -> None:
        """Call act(); errors of the process or the plan end the management or the session."""
        try:
            act()
        except SentinelError as error:
            log.warning("process %d is not managed: %s", self.link.pid, error)
            self._driver.unmanage(str(error))
        except EOFError:
            self._driver.end("the process does not read its socket")
        except ProcessLookupError:
            # The module and move_pages may notice the exit before the next check of the pidfd.
            self._driver.end("the process exited")
