# SPDX-License-Identifier: Apache-2.0
"""The table of sessions of policy `temperature`."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import NamedTuple

from sentineld.base.errors import SentinelError, hung_up
from sentineld.base.log_events import LogEvent, about
from sentineld.base.units import FastBudget, format_bytes
from sentineld.heat.paging_out import usable_bytes
from sentineld.heat.quota import Quota
from sentineld.heat.session import TEMPERATURE, HeatSession
from sentineld.heat.target import CgroupTarget, OneProcess, Target, Tree, argument_of
from sentineld.host.swap import read_swap
from sentineld.machine.machine import Machine
from sentineld.machine.swapped import require_swap
from sentineld.session.goals import TermChanges, first_goal
from sentineld.session.turns import Turns
from sentineld.session.work.planning import Goal

log = logging.getLogger(__name__)

GONE_CHECK_S = 0.25
"""Interval at which detach() checks whether its caller has hung up."""


class Wanted(NamedTuple):
    """The target that a caller names: a process, a process with its descendants, or a cgroup."""

    pid: int = 0
    tree: bool = False
    cgroup: str = ""

    @property
    def is_group(self) -> bool:
        """See Target."""
        return self.tree or bool(self.cgroup)

    def open(self) -> Target:
        """Open the target. Raises SentinelError."""
        if self.cgroup:
            return CgroupTarget(self.cgroup)
        return Tree(self.pid) if self.tree else OneProcess(self.pid)


class HeatTable:
    """The sessions, found by the names of their targets. Thread-safe."""

    def __init__(
        self, machine: Machine, turns: Turns, with_shim: Callable[[int], object | None]
    ) -> None:
        """with_shim: returns the session of a process that runs under the shim, or None."""
        self._machine = machine
        self._with_shim = with_shim
        self._turns = turns
        self._lock = threading.Lock()
        self._sessions: dict[str, HeatSession] = {}
        self._opening: set[str] = set()
        self._quotas: dict[int, Quota] = {}  # by user ID

    def find(self, wanted: Wanted) -> HeatSession | None:
        """The session of a process, of the tree with this root, or of a cgroup; None if there is
        none. Raises SentinelError if there is no such cgroup."""
        sessions = self.all()
        if not wanted.cgroup:
            return next((one for one in sessions if one.target.named_by(wanted.pid)), None)
        target = wanted.open()
        target.close()
        return next((one for one in sessions if one.name == target.name), None)

    def holder(self, pid: int) -> HeatSession | None:
        """The session that manages a process, alone or as one of a group; None if there is none."""
        return next((one for one in self.all() if pid in one.figures.processes), None)

    def all(self) -> list[HeatSession]:
        """All sessions that have not ended."""
        with self._lock:
            self._sessions = {
                name: session for name, session in self._sessions.items() if not session.ended
            }
            return list(self._sessions.values())

    def attach(
        self,
        caller_uid: int,
        wanted: Wanted,
        fast: FastBudget | None,
        terms: TermChanges | None,
        gone: threading.Event,
    ) -> HeatSession:
        """Begin to manage a target, or change the budget of a managed target, or the terms of its
        share. fast: if None, a managed target keeps its budget, and a new target shares the shared
        budget or, if there is none, gets the configured budget. gone: set when the caller has hung
        up. Raises SentinelError."""
        session = self.find(wanted)
        if session is not None:
            _require_own(session, caller_uid)
            if wanted.tree and not session.target.is_group:
                raise SentinelError(
                    "wrong-state",
                    f"process {wanted.pid} is managed without its descendants",
                    f"run sentinelctl detach {wanted.pid} first",
                )
            if wanted.is_group:
                _require_whole(session, caller_uid)
            session.attach(fast, terms, gone)
            return session
        self._require_substrate()
        goal = first_goal(self._machine, fast, TEMPERATURE, terms)
        target = wanted.open()
        with self._lock:
            # Another command may have opened the session since find() was called.
            known = self._sessions.get(target.name)
            if target.name in self._opening or (known is not None and not known.ended):
                target.close()
                raise SentinelError(
                    "busy", f"{target.title} is being attached by another command", "try again"
                )
            self._opening.add(target.name)
        try:
            session = self._opened(target, caller_uid, goal)
        finally:
            with self._lock:
                self._opening.discard(target.name)
        log.info(
            "%s is managed without the shim",
            target.title,
            extra=about(LogEvent.GROUP_MANAGED, **session.logged_fields()),
        )
        return session

    def _opened(self, target: Target, caller_uid: int, goal: Goal) -> HeatSession:
        """Make and start a session. Closes the target if no session can be started."""
        try:
            quota = self._quota(caller_uid)
            session = HeatSession(target, caller_uid, goal, self._machine, self._turns, quota)
        except ProcessLookupError:
            target.close()
            raise SentinelError(
                "no-such-process", f"{target.title} has exited", "see ps -e"
            ) from None
        except SentinelError as error:
            target.close()
            raise self._explained(error, target, caller_uid) from None
        except BaseException:
            target.close()
            raise
        try:
            self._require_room(session)
            with self._lock:
                self._sessions[target.name] = session
                session.start()
            # If a process has registered since it was opened, leave_out() may have been called
            # before the session was in the table.
            for pid in session.figures.processes:
                if self._with_shim(pid) is not None:
                    session.leave_out(pid)
        except BaseException as error:
            session.abandon()
            if isinstance(error, RuntimeError):
                raise SentinelError(
                    "busy", f"{target.title} can't be managed: {error}", "raise TasksMax"
                ) from None
            raise
        return session

    def _quota(self, uid: int) -> Quota:
        with self._lock:
            return self._quotas.setdefault(uid, Quota.of_user(uid))

    def _explained(self, error: SentinelError, target: Target, caller_uid: int) -> SentinelError:
        """The error to raise if a session cannot be opened. If the session of a group already
        manages the process, the error names the group."""
        if target.pid and error.code == "busy":
            return self.part_of_group(target.pid, caller_uid) or error
        return error

    def part_of_group(self, pid: int, caller_uid: int) -> SentinelError | None:
        """The error for a process that is managed as one of a group; None if it is not, or if the
        group's session is another user's."""
        holder = self.holder(pid)
        if holder is None or not holder.target.is_group or caller_uid not in (0, holder.uid):
            return None
        return SentinelError(
            "busy",
            f"process {pid} is managed as a part of {holder.target.title}",
            f"run sentinelctl detach {argument_of(holder.target)} first",
        )

    def leave_out(self, pid: int) -> None:
        """Release a process because it now runs under the shim."""
        for session in self.all():
            if session.target.is_group or session.target.pid == pid:
                session.leave_out(pid)

    def detach(self, session: HeatSession, caller_uid: int, gone: threading.Event) -> None:
        """Stop managing a target. gone: set when the caller has hung up; the session still ends,
        but is not waited for. Raises SentinelError."""
        _require_own(session, caller_uid)
        session.end("detached")
        while not session.join(GONE_CHECK_S):
            if gone.is_set():
                raise hung_up()

    def _require_substrate(self) -> None:
        substrate = self._machine.substrate
        if not (substrate.swap or substrate.paged):
            kind = "emulated" if substrate.emulated else "the machine's memory nodes"
            raise SentinelError(
                "wrong-state",
                f"policy {TEMPERATURE} needs a daemon whose fast tier is the machine's memory, but "
                f"the daemon's tiers are {kind}",
                "start sentineld with --tiers swap or, to manage trainings under the shim, too, "
                "with --tiers paged",
            )
        self._machine.require_tiers()
        require_swap()

    def _require_room(self, session: HeatSession) -> None:
        """Raise SentinelError if the memory above the budget does not fit into swap."""
        figures, swap = session.figures, read_swap()
        needed_bytes = figures.resident_bytes - session.wanted_bytes
        room_bytes = usable_bytes(swap)
        if needed_bytes > room_bytes:
            raise SentinelError(
                "budget-too-large",
                f"{format_bytes(needed_bytes)} would have to be paged out, but sessions may fill "
                f"only {format_bytes(room_bytes)} of the {format_bytes(swap.free_bytes)} that are "
                "free in swap",
                "set a larger --fast or --min, or enable more swap",
            )


def _require_own(session: HeatSession, caller_uid: int) -> None:
    if caller_uid not in (0, session.uid):
        raise SentinelError(
            "not-permitted",
            f"the session of {session.target.title} belongs to another user",
            "ask its owner, or run as root",
        )


def _require_whole(session: HeatSession, caller_uid: int) -> None:
    """Raise SentinelError if root attaches a group whose session is another user's. This session
    manages only the processes of its user, but root attaches all processes of the group."""
    if caller_uid == 0 and session.uid != 0:
        raise SentinelError(
            "busy",
            f"{session.target.title} was attached by user {session.uid}, whose session leaves out "
            "the processes of other users",
            f"run sentinelctl detach {argument_of(session.target)} first",
        )
