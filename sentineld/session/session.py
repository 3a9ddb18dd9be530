# SPDX-License-Identifier: Apache-2.0
"""A session: one registered process and the thread that serves it.

The driver (driver.py) handles commands, messages and records in the session's own thread. This
thread also blocks while a plan is made from a new profile, and it moves the persistent tensors to
the plan's initial tiers. Separate threads carry out all other moves and make plans that replace a
live plan. Other threads put commands into the queue of the session's thread. While the process is
attached or recorded, the session's thread also takes a turn at intervals (_poll_s()): it checks the
process and reads its records.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from sentineld.base.commands import Backlog, Command, Commands
from sentineld.base.errors import SentinelError, hung_up
from sentineld.base.log_events import LOGGED_FIELDS, LogEvent, about
from sentineld.base.log_limit import LOGGED_USER
from sentineld.base.units import FastBudget
from sentineld.control.frames import Message
from sentineld.machine.machine import Machine
from sentineld.model.records import TensorName
from sentineld.observe.shim_link import ShimLink
from sentineld.profile.meter import StepMeter
from sentineld.profile.trace import Trace
from sentineld.session.driver import Driver
from sentineld.session.lifecycle import EXITED, NOT_READING, State
from sentineld.session.resuming import Resuming
from sentineld.session.state import StateFiles
from sentineld.session.turns import Turns
from sentineld.session.work.planning import Goal
from sentineld.session.work.replanning import Replanning
from sentineld.session.work.request import Request

log = logging.getLogger(__name__)

Result = TypeVar("Result")

POLL_S = 0.25
"""Shortest interval between two turns if the process writes no records."""
STAYS = threading.Event()
"""The `gone` event of a caller that never hangs up; it is never set."""
RECORDING_POLL_S = 0.05
"""Shortest interval between two turns while the process writes records. In this time, a training
process fills only a small part of the ring."""
QUIET_S = 1.0
"""A process that has written no record for this time counts as one that writes no records."""
MESSAGES_MAX = 64
MESSAGE_BYTES_MAX = 16 << 20
"""Limits on a process's unhandled messages: their number and their bytes. Messages stay unhandled,
for example, while a plan is made. At either limit the daemon stops reading the connection. A shim
sends at most a few messages per step while its process is profiled, and hardly any at other
times."""
FAILURES_MAX = 100
"""Limit on the number of errors of a session; one more ends the session. The number is limited
because each error writes to the log."""


class Session:
    """A registered process. Public methods may be called from any thread."""

    def __init__(
        self,
        link: ShimLink,
        machine: Machine,
        states: StateFiles,
        turns: Turns,
        before: Session | None = None,
    ) -> None:
        """before: the process's earlier session, or None. The new session waits until the earlier
        session has ended."""
        self.link = link
        self.machine = machine
        self.began_ns = time.monotonic_ns()
        """Time when this session began, on CLOCK_MONOTONIC; later than the last exec() of the
        process."""
        self._driver = Driver(link, machine, states, self._mover_ended)
        self._resuming = Resuming(link, machine, self._driver)
        self.name = self._driver.attachment.name
        self.lifecycle = self._driver.lifecycle
        self.observing = self._driver.observing
        self.following = self._driver.following
        self.last_meter: StepMeter | None = None
        self._commands = Commands()
        self._backlog = Backlog(MESSAGES_MAX, MESSAGE_BYTES_MAX, lambda: link.on_room())
        self._before = before
        self._failures = 0
        self._turns = turns
        self._takes_turns = False  # whether self._turns counts this session
        self._turn_s = time.monotonic()  # end of the last turn
        self._busy_s = self._turn_s  # end of the last turn in which there were new records
        self._exit_noted = False
        self._thread = threading.Thread(target=self._run, name=f"session-{link.pid}", daemon=True)

    @property
    def goal(self) -> Goal | None:
        """Budget and policy of the last attach."""
        return self._driver.attachment.goal

    @property
    def rule(self) -> str:
        """File and number of the config's rule that attached the process; "": no rule did."""
        return self._driver.attachment.rule

    @property
    def tensor_names(self) -> Mapping[int, TensorName]:
        """The framework's names of persistent tensors by address, as last reported."""
        return self._driver.tensor_names

    def start(self) -> None:
        """Begin to serve the session."""
        self._driver.set_barrier_timeout()
        self.link.beat()
        self._thread.start()

    def beat(self) -> None:
        """Refresh the heartbeat that barriers in the process rely on."""
        if self.lifecycle.state is not State.ENDED:
            self.link.beat()

    def note_exit(self) -> None:
        """End the session because its process has exited. Further calls do nothing."""
        if not self._exit_noted:
            self._exit_noted = True
            self.end(EXITED)

    def on_message(self, message: Message | None, size_bytes: int) -> bool:
        """Take a message from the shim; None: the connection is closed. size_bytes: see Receiver.

        Returns whether the caller may read the next message now. If not, link.on_room() is called
        when there is room for messages again.
        """
        if message is None:
            self.end("the process closed its connection")
            return False

        def take() -> None:
            try:
                self._driver.take(message)
            finally:
                self._backlog.remove(size_bytes)
                self.link.on_handled(size_bytes)

        go_on = self._backlog.add(size_bytes)
        self._commands.put(take)
        return go_on

    # Verbs: actions for clients of the daemon. Each blocks until it is done, and raises
    # SentinelError if it fails. gone: set when the caller has hung up; the verb is then cancelled.

    def attach(
        self,
        fast: FastBudget | None,
        policy_name: str | None,
        gone: threading.Event = STAYS,
        terms: Mapping[str, Any] | None = None,
    ) -> None:
        """Begin to manage the process, or switch it to another budget or policy if it is managed.

        A switch blocks until the new plan is made; if planning fails, the process keeps the live
        plan.
        fast, policy_name, terms: see Driver.attach().
        """
        self._wait_entered(gone)
        replanning: Replanning | None = self._call(
            lambda: self._driver.attach(fast, policy_name, terms), gone
        )
        if replanning is not None:
            self._result_of(replanning, gone)

    def detach(self, gone: threading.Event = STAYS) -> None:
        """Stop managing the process, which continues to run."""
        self._call(self._driver.detach, gone)

    def meter(self, steps: int, gone: threading.Event = STAYS) -> list[StepMeter]:
        """Meter managed steps."""
        self._wait_entered(gone)
        request: Request[list[StepMeter]] = self._call(lambda: self._driver.meter(steps), gone)
        metered = self._result_of(request, gone)
        self.last_meter = metered[-1]
        return metered

    def record(self, steps: int, gone: threading.Event = STAYS) -> Trace:
        """Record steps, and then one more step, whose accesses are sampled."""
        self._wait_entered(gone)
        request: Request[Trace] = self._call(lambda: self._driver.record(steps), gone)
        return self._result_of(request, gone)

    def _wait_entered(self, gone: threading.Event) -> None:
        """Wait while another plan replaces the live plan. During this time the state is ENTERING,
        in which the driver would refuse the caller's verb."""
        while self.lifecycle.state is State.ENTERING and self.following.managed is not None:
            if gone.wait(RECORDING_POLL_S):
                raise hung_up()

    def _result_of(self, request: Request[Result], gone: threading.Event) -> Result:
        while not request.over(POLL_S):
            if gone.is_set():
                self._commands.put(lambda: self._driver.cancel(request))
                raise hung_up()
        return request.wait()

    def end(self, reason: str) -> None:
        """Make the session's thread release the process and end the session."""
        self._commands.put(lambda: self._driver.end(reason))

    def _mover_ended(self, reason: str) -> None:
        self._commands.put(lambda: self._driver.mover_ended(reason))

    def close(self) -> None:
        """Begin to release the process but keep its state files, for the next daemon."""
        self._driver.keeps_files = True
        self.end("the daemon stops")

    def join(self, timeout_s: float | None = None) -> None:
        """Wait until the process is released. timeout_s: None: wait without a limit."""
        self._thread.join(timeout_s)

    def not_yet(self, what: str) -> SentinelError:
        """The error for a verb, such as meter(), that the current state does not allow."""
        return self._driver.not_yet(what)

    def _call(self, function: Callable[[], Result], gone: threading.Event) -> Result:
        made: list[Result] = []

        def unless_gone() -> Result:
            if gone.is_set():
                raise hung_up()
            try:
                made.append(function())
            except EOFError:
                self._driver.end(NOT_READING)  # as in _guarded(), which sees no errors of verbs
                raise
            return made[0]

        def undo() -> None:
            for one in made:
                if isinstance(one, Request):
                    self._driver.cancel(one)

        try:
            result: Result = self._commands.call(
                unless_gone, lambda: self._driver.ended or gone.is_set()
            )
            return result
        except EOFError:
            if gone.is_set():
                # The session's thread may be running unless_gone() at this moment. It runs undo()
                # after unless_gone() has returned.
                self._commands.put(undo)
                raise hung_up() from None
            raise self.not_yet("can't be reached") from None
        except (OSError, RuntimeError) as error:  # RuntimeError: no thread can be started
            raise SentinelError(
                "busy",
                f"process {self.link.pid} can't be served now: {error}",
                "try again; LimitNOFILE and TasksMax of the daemon's unit may be too low",
            ) from None

    # The session's thread.

    def _run(self) -> None:
        driver = self._driver
        LOGGED_USER.set(self.link.uid)
        LOGGED_FIELDS.set(driver.logged_fields)
        try:
            if self._before is not None:
                # Both sessions watch the same pid and have state files of the same name. If the
                # earlier session ended after this session had begun, it would release resources
                # that this session uses.
                self._before.join()
                self._before = None
            self._guarded(self._resuming.begin)
            while not driver.ended:
                self._guarded(self._next_command() or self._turn)
        except Exception:
            log.exception(
                "session %d ends: internal error",
                self.link.pid,
                extra=about(LogEvent.INTERNAL_ERROR),
            )
            with contextlib.suppress(Exception):
                # end() releases all resources, even if the release of one of them fails.
                driver.end("internal error of the daemon")
        finally:
            self._take_turns(False)

    def _next_command(self) -> Command | None:
        """The next command; None as soon as it is time for a turn. Commands do not postpone turns:
        otherwise, a process that sends messages could prevent the checks of a turn."""
        poll_s = self._poll_s()
        if poll_s is None:
            return self._commands.get()
        wait_s = self._turn_s + poll_s - time.monotonic()
        return self._commands.get(wait_s) if wait_s > 0 else None

    def _turn(self) -> None:
        try:
            self._driver.turn()
        finally:
            self._turn_s = time.monotonic()
            if self._driver.found_records:
                self._busy_s = self._turn_s

    def _poll_s(self) -> float | None:
        """The time from one turn to the next; None: no turn is needed, because the process is only
        registered and not recorded. If such a process exits, note_exit() ends the session."""
        recording = self._driver.recording
        self._take_turns(recording or self.lifecycle.state is not State.REGISTERED)
        if not self._takes_turns:
            return None
        # A recorded process may write no records for a long time, for example while it is stopped.
        # It is then checked less often.
        quiet = self._turn_s - self._busy_s > QUIET_S
        wanted_s = RECORDING_POLL_S if recording and not quiet else POLL_S
        return self._turns.interval_s(self.link.uid, wanted_s)

    def _take_turns(self, whether: bool) -> None:
        if whether != self._takes_turns:
            self._takes_turns = whether
            (self._turns.enter if whether else self._turns.leave)(self.link.uid)

    def _guarded(self, act: Callable[[], None]) -> None:
        """Call act(). If act() raises an error, stop managing the process or end the session."""
        try:
            act()
        except SentinelError as error:
            self._fail(str(error))
        except EOFError:
            self._driver.end(NOT_READING)
        except ProcessLookupError:
            # The process has exited, and a call to the kernel module or to move_pages() failed
            # before the next check of the pidfd could detect the exit.
            self._driver.end(EXITED)
        except (OSError, RuntimeError) as error:
            # An error of the daemon: an OSError such as EMFILE, or a RuntimeError because no thread
            # can be started. The process did not cause this error and stays registered.
            self._fail(f"an error of the daemon: {error}")

    def _fail(self, reason: str) -> None:
        """Count an error, and stop managing the process. After more than FAILURES_MAX errors, end
        the session."""
        log.warning(
            "process %d is not managed: %s",
            self.link.pid,
            reason,
            extra=about(LogEvent.NOT_MANAGED),
        )
        self._failures += 1
        if self._failures > FAILURES_MAX:
            self._driver.end(f"it has failed {self._failures} times; the last time: {reason}")
        else:
            self._driver.unmanage(reason)
