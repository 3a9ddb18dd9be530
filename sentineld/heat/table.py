# SPDX-License-Identifier: Apache-2.0
"""The table of sessions of policy `temperature`."""

from __future__ import annotations

import logging
import threading

from sentineld.base.errors import SentinelError
from sentineld.base.units import FastBudget, format_bytes
from sentineld.heat.paging_out import usable_bytes
from sentineld.heat.session import HeatSession
from sentineld.heat.target import HeatTarget
from sentineld.host.swap import read_swap
from sentineld.machine.machine import Machine
from sentineld.machine.swapped import require_swap
from sentineld.migrate.advice import require_advice
from sentineld.observe.peer import require_owner
from sentineld.session.turns import Turns

log = logging.getLogger(__name__)

TEMPERATURE = "temperature"
"""The name of the policy. It makes no plans, so it is not in the registry of policies."""


class HeatTable:
    """Sessions by process ID. Thread-safe."""

    def __init__(self, machine: Machine, turns: Turns) -> None:
        self._machine = machine
        self._turns = turns
        self._lock = threading.Lock()
        self._sessions: dict[int, HeatSession] = {}

    def find(self, pid: int) -> HeatSession | None:
        """The process's session; None if it has none."""
        return next((session for session in self.all() if session.pid == pid), None)

    def all(self) -> list[HeatSession]:
        """All sessions that have not ended."""
        with self._lock:
            self._sessions = {
                pid: session for pid, session in self._sessions.items() if not session.ended
            }
            return list(self._sessions.values())

    def attach(self, caller_uid: int, pid: int, fast: FastBudget | None) -> HeatSession:
        """Begin to manage a process, or change the budget of a managed one; None keeps the budget,
        or takes the configured one. Raises SentinelError."""
        session = self.find(pid)
        if session is not None:
            require_owner(session.pid, session.uid, caller_uid)
            session.attach(fast or session.fast)
            return session
        self._require_substrate()
        target = HeatTarget(pid, caller_uid)
        try:
            require_advice(target.process.fileno(), pid)
            wanted = fast or FastBudget.parse(self._machine.config.fast)
            session = HeatSession(target, wanted, self._machine, self._turns)
        except ProcessLookupError:
            target.close()
            raise SentinelError(
                "no-such-process", f"process {pid} has exited", "see ps -e"
            ) from None
        except BaseException:
            target.close()
            raise
        try:
            self._require_room(session)
            with self._lock:
                # Only one HeatTarget of a process can be open, so no other thread has added a
                # session of this process.
                self._sessions[pid] = session
                session.start()
        except BaseException as error:
            session.abandon()
            if isinstance(error, RuntimeError):
                raise SentinelError(
                    "busy", f"process {pid} can't be managed: {error}", "raise TasksMax"
                ) from None
            raise
        log.info("process %d is managed without the shim", pid, extra={"uid": session.uid})
        return session

    def detach(self, session: HeatSession, caller_uid: int) -> None:
        """Stop managing a process. Raises SentinelError."""
        require_owner(session.pid, session.uid, caller_uid)
        session.end("detached")
        session.join()

    def close(self) -> None:
        """End all sessions."""
        sessions = self.all()
        for session in sessions:
            session.end("the daemon stops")
        for session in sessions:
            session.join()

    def _require_substrate(self) -> None:
        if not self._machine.substrate.swap:
            raise SentinelError(
                "wrong-state",
                f"policy {TEMPERATURE} needs memory and swap as tiers",
                "start sentineld with --tiers swap",
            )
        self._machine.require_tiers()
        require_swap()

    def _require_room(self, session: HeatSession) -> None:
        """Raise SentinelError if the process's memory above the budget does not fit into swap."""
        figures, swap = session.figures, read_swap()
        needed_bytes = figures.resident_bytes - figures.budget_bytes
        if needed_bytes > usable_bytes(swap):
            raise SentinelError(
                "budget-too-large",
                f"{format_bytes(needed_bytes)} would have to be paged out, but swap has only "
                f"{format_bytes(swap.free_bytes)} free",
                "set a larger --fast, or enable more swap",
            )
