# SPDX-License-Identifier: Apache-2.0
"""The table of sessions, and the verbs of the control socket that act on it."""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections.abc import Callable, Sequence
from typing import IO, Any

from sentineld.base.errors import SentinelError
from sentineld.base.log_events import LogEvent, about
from sentineld.base.units import FastBudget, parse_bytes
from sentineld.control.frames import Message
from sentineld.control.server import Caller, WithFile
from sentineld.heat.session import TEMPERATURE, HeatSession
from sentineld.heat.table import HeatTable, Wanted
from sentineld.machine.machine import Machine
from sentineld.observe.peer import require_owner
from sentineld.observe.procs import ProcessEvent
from sentineld.observe.shim_link import ShimLink
from sentineld.observe.shim_server import Receiver
from sentineld.plan.store import write_plan
from sentineld.policies.registry import managing_policy
from sentineld.profile.trace_file import write_trace
from sentineld.service.views import (
    describe,
    describe_heat,
    explain,
    live_plan,
    residency_by_layer,
    tensors,
)
from sentineld.session.lifecycle import CALLED_EXEC, State
from sentineld.session.session import Session
from sentineld.session.state import StateFiles
from sentineld.session.turns import Turns

log = logging.getLogger(__name__)

RECORDED_STEPS_MAX = 100
CLOSE_S = 10.0
"""Maximum time for which a stopping daemon waits for all sessions, with and without the shim, to
end."""
EXIT_CHECK_S = 2.0
"""Interval at which beat() looks for processes that have exited and reads energy counters."""


class Sessions:
    """Sessions by process ID.

    The verbs' methods run in threads of the control server; hello() runs in the event loop.
    """

    def __init__(self, machine: Machine, states: StateFiles) -> None:
        self._machine = machine
        self._states = states
        self._lock = threading.Lock()
        self._sessions: dict[int, Session] = {}
        self._turns = Turns()
        self.heat = HeatTable(machine, self._turns, self._with_shim)
        """The sessions of processes without the shim."""
        machine.on_process = self._process_event
        self.beat_s = time.time()
        """Unix time of the last heartbeat."""
        self._exits_checked_s = time.monotonic()

    def hello(self, link: ShimLink) -> Receiver:
        """Register a process whose shim sent a hello; returns Session.on_message.

        The new session resumes from the state files of an earlier daemon, if there are any. It
        first waits until the process's earlier session has ended, if there is one. Raises
        SentinelError; the caller then closes the link.
        """
        with self._lock:
            before = self._sessions.get(link.pid)
        self.heat.leave_out(link.pid)
        try:
            session = Session(link, self._machine, self._states, self._turns, before)
            session.start()
        except (OSError, RuntimeError) as error:
            raise SentinelError(
                "busy",
                f"process {link.pid} can't be registered: {error}",
                "raise LimitNOFILE and TasksMax of the daemon's unit, or end other trainings",
            ) from None
        with self._lock:
            self._sessions[link.pid] = session
        # Again, because a group may have been opened since the first call; see HeatTable.
        self.heat.leave_out(link.pid)
        if before is not None:
            before.end("the process registered again")
        log.info(
            "process %d registered: %s",
            link.pid,
            session.lifecycle.status.reason,
            extra=about(LogEvent.REGISTERED, session=session.name, pid=link.pid, uid=link.uid),
        )
        return session.on_message

    def _process_event(self, event: ProcessEvent) -> None:
        """Handle a fork, exec or exit in the process tree of an attached session. Only an exec or
        exit of the session's own process has an effect."""
        with self._lock:
            session = self._sessions.get(event.pid)
        if session is None or event.pid != event.root:
            return
        if event.kind == "exec":
            if event.time_ns < session.began_ns:
                return  # the exec() that started the program, reported after the hello
            # exec() replaced the address space: shim, arena and mappings are gone.
            session.end(CALLED_EXEC)
        elif event.kind == "exit":
            session.note_exit()

    def all(self) -> list[Session]:
        """All sessions that have not ended."""
        with self._lock:
            for pid, session in list(self._sessions.items()):
                if session.lifecycle.state is State.ENDED:
                    del self._sessions[pid]
            return list(self._sessions.values())

    def beat(self) -> None:
        """Refresh every session's heartbeat. At intervals, end the sessions of processes that have
        exited, and read the energy counters."""
        self.beat_s = time.time()
        sessions = self.all()
        for session in sessions:
            session.beat()
        if time.monotonic() > self._exits_checked_s + EXIT_CHECK_S:
            self._exits_checked_s = time.monotonic()
            _note_exits(sessions)
            if self._machine.rapl is not None:
                self._machine.rapl.joules()  # read the counters before they wrap

    def close(self) -> None:
        """Release every process; the state files stay for the next daemon. Returns after CLOSE_S
        at the latest, because this call blocks the event loop."""
        sessions, heat = self.all(), self.heat.all()
        for session in sessions:
            session.close()
        for one in heat:
            one.end("the daemon stops")
        deadline_s = time.monotonic() + CLOSE_S
        for session in sessions:
            session.join(max(0.0, deadline_s - time.monotonic()))
        for one in heat:
            one.join(max(0.0, deadline_s - time.monotonic()))

    # Verbs: (caller, arguments) -> JSON-serialisable result, or WithFile.

    def attach(self, caller: Caller, arguments: Message) -> Any:
        """Start managing a process or a group, or switch a managed target to another budget or
        policy.

        The target is the process "pid" or, if "tree" is true, this process and its descendants. If
        "cgroup" is given instead, the target is that cgroup; see observe/cgroup.py. Groups are
        managed by the policy `temperature` only.

        If "fast" or "policy" is missing, a managed process keeps its current value, and any other
        process gets the configured value. If the tiers are memory and swap, a process without the
        shim gets the policy `temperature` instead of the configured policy.

        If the daemon has a shared budget, a process or group that is not managed yet and is
        attached without "fast" shares this budget. "weight", "min" and "max" set the session's
        terms for the shared budget; see Terms (plan/division.py).
        """
        fast = FastBudget.parse(str(arguments["fast"])) if arguments.get("fast") else None
        policy = str(arguments["policy"]) if arguments.get("policy") else None
        terms = _terms(arguments)
        wanted = _wanted(arguments)
        if wanted.is_group and policy not in (None, TEMPERATURE):
            raise SentinelError(
                "usage",
                f"policy {policy} manages single processes under the shim",
                f"leave out --policy, or use {TEMPERATURE}",
            )
        if wanted.is_group:
            policy = TEMPERATURE
        managed = not wanted.is_group and self.heat.find(wanted) is not None
        default = TEMPERATURE if self._machine.substrate.swap or managed else None
        if (policy or default) == TEMPERATURE and self._with_shim(wanted.pid) is None:
            heat = self.heat.attach(caller.uid, wanted, fast, terms, caller.gone)
            return self._described_heat(heat)
        session = self._of_caller(caller.uid, arguments)
        if policy == TEMPERATURE:
            raise SentinelError(
                "wrong-state",
                f"process {wanted.pid} runs under the shim; "
                f"{TEMPERATURE} is for processes without it",
                "use another policy, such as auto",
            )
        managing_policy(policy or self._machine.config.policy)
        session.attach(fast, policy, caller.gone, terms)
        return self._described([session])[0]

    def detach(self, caller: Caller, arguments: Message) -> Any:
        """Stop managing a process or a group."""
        wanted = _wanted(arguments)
        heat = self.heat.find(wanted)
        if heat is not None:
            self.heat.detach(heat, caller.uid, caller.gone)
            return self._described_heat(heat)
        if wanted.cgroup:
            raise SentinelError(
                "wrong-state", f"cgroup {wanted.cgroup} is not managed", "see sentinelctl status"
            )
        part = self.heat.part_of_group(wanted.pid, caller.uid)
        if part is not None:
            raise part
        session = self._of_caller(caller.uid, arguments)
        session.detach(caller.gone)
        return self._described([session])[0]

    def meter(self, caller: Caller, arguments: Message) -> Any:
        """Meter whole managed steps; blocks until they are metered."""
        session = self._of_caller(caller.uid, arguments)
        steps = arguments.get("steps")
        if type(steps) is not int or not 1 <= steps <= 1000:
            raise SentinelError("usage", f"steps = {steps!r}", "give 1 to 1000")
        metered = [step.to_json() for step in session.meter(steps, caller.gone)]
        return {"emulated": self._machine.substrate.emulated, "steps": metered}

    def record(self, caller: Caller, arguments: Message) -> WithFile:
        """Record a trace; blocks until it is complete.

        The result carries the trace as an open file: the client writes it to disk with the client's
        permissions.
        """
        session = self._of_caller(caller.uid, arguments)
        steps = arguments.get("steps")
        if type(steps) is not int or not 1 <= steps <= RECORDED_STEPS_MAX:
            raise SentinelError("usage", f"steps = {steps!r}", f"give 1 to {RECORDED_STEPS_MAX}")
        trace = session.record(steps, caller.gone)
        fd = _written("sentineld-trace", lambda file: write_trace(trace, file, compressed=False))
        return WithFile({"notes": trace.facts["notes"]}, fd)

    def tensors(self, caller: Caller, arguments: Message) -> Any:
        """The tensors of the session's profile."""
        return {"tensors": tensors(self._of_caller(caller.uid, arguments))}

    def residency(self, caller: Caller, arguments: Message) -> Any:
        """The resident bytes of the live plan's tensors, by layer and tier."""
        return residency_by_layer(self._of_caller(caller.uid, arguments))

    def plan(self, caller: Caller, arguments: Message) -> Any:
        """The plan as text and as values for JSON; with the argument "bound" also the fast-share
        bound."""
        return explain(self._of_caller(caller.uid, arguments), bool(arguments.get("bound")))

    def plan_file(self, caller: Caller, arguments: Message) -> WithFile:
        """The live plan and its profile as an open file, with the names of persistent tensors."""
        plan, profile, names = live_plan(self._of_caller(caller.uid, arguments))
        fd = _written("sentineld-plan", lambda file: write_plan(plan, profile, file))
        return WithFile({"names": names}, fd)

    def status(self, uid: int) -> list[dict[str, Any]]:
        """The sessions that the caller may see: root may see all sessions, any other user only
        sessions of that user's processes."""
        heat = [self._described_heat(one) for one in self.heat.all() if uid in (0, one.uid)]
        return self._described([one for one in self.all() if uid in (0, one.link.uid)]) + heat

    def _described(self, sessions: Sequence[Session]) -> list[dict[str, Any]]:
        disturbances = self._machine.probing.disturbances()
        return [describe(one, disturbances.get(one.link.pid, [])) for one in sessions]

    def _described_heat(self, session: HeatSession) -> dict[str, Any]:
        return describe_heat(session, self._machine.share_of(session))

    def _with_shim(self, pid: int) -> Session | None:
        """The process's session; None if the process has no session or the session has ended."""
        with self._lock:
            session = self._sessions.get(pid)
        return None if session is None or session.lifecycle.state is State.ENDED else session

    def _of_caller(self, uid: int, arguments: Message) -> Session:
        pid = _pid(arguments)
        session = self._with_shim(pid)
        if session is not None:
            require_owner(pid, session.link.uid, uid)
            return session
        try:
            owner = os.stat(f"/proc/{pid}").st_uid
        except FileNotFoundError:
            raise SentinelError(
                "no-such-process", f"no process has the ID {pid}", "see sentinelctl status"
            ) from None
        require_owner(pid, owner, uid)
        raise SentinelError(
            "not-a-shim-process",
            f"process {pid} does not run under the shim",
            "start it with: python3 -m sentineld.shim train.py; or manage it over swap, with "
            "sentineld --tiers swap or paged, and sentinelctl attach --policy "
            f"{TEMPERATURE}",
        )


def _wanted(arguments: Message) -> Wanted:
    """The target in the arguments of a verb. Raises SentinelError."""
    cgroup = arguments.get("cgroup")
    if not cgroup:
        return Wanted(_pid(arguments), bool(arguments.get("tree")))
    if not isinstance(cgroup, str) or "\0" in cgroup:
        raise SentinelError("usage", f"{cgroup!r} is not the path of a cgroup")
    return Wanted(cgroup=cgroup)


def _terms(arguments: Message) -> dict[str, float | int]:
    """The fields of Terms in the arguments of a verb. Raises SentinelError."""
    terms: dict[str, float | int] = {}
    if (weight := arguments.get("weight")) is not None:
        if type(weight) not in (int, float):
            raise SentinelError("usage", f"weight = {weight!r} is not a number", "use 1 or 2.5")
        try:
            terms["weight"] = float(weight)
        except OverflowError:
            raise SentinelError("usage", "the weight is too large", "use 1 or 2.5") from None
    for name, field in (("min", "least_bytes"), ("max", "most_bytes")):
        if arguments.get(name) is not None:
            terms[field] = parse_bytes(str(arguments[name]))
    return terms


def _pid(arguments: Message) -> int:
    """The process ID in the arguments of a verb. Raises SentinelError."""
    pid = arguments.get("pid")
    if type(pid) is not int or pid <= 0:
        raise SentinelError("usage", f"{pid!r} is not a process ID")
    return pid


def _written(name: str, write: Callable[[IO[bytes]], None]) -> int:
    """A new memfd with the data that `write` writes; the caller owns the descriptor."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC)
    try:
        with os.fdopen(fd, "wb", closefd=False) as file:
            write(file)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _note_exits(sessions: Sequence[Session]) -> None:
    """End the sessions whose processes have exited. Most such sessions have already ended, because
    their connections were closed. But a connection stays open if another process has inherited
    it."""
    poll, by_fd = select.poll(), {}
    for session in sessions:
        fd = session.link.peer.process.fileno()
        if fd >= 0:
            poll.register(fd, select.POLLIN)
            by_fd[fd] = session
    # If a session's thread closes its pidfd before the poll, the session is ending anyway, and
    # note_exit() has no effect.
    for fd, _ in poll.poll(0):
        by_fd[fd].note_exit()
