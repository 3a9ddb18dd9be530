# SPDX-License-Identifier: Apache-2.0
"""Limits the number of processes in all sessions of a user, because each takes descriptors of the
daemon."""

from __future__ import annotations

import resource
import sys
import threading

from sentineld.heat.target import PROCESSES_MAX, Target

DESCRIPTORS_PER_PROCESS = 3
"""A pidfd in target.py (none for a cgroup), and a pidfd and a pagemap file in member.py."""
USER_SHARE = 1 / 4
"""Share of the daemon's descriptors that the processes of one user may take."""


class Quota:
    """The limit of one user. The user's sessions share this object. Thread-safe."""

    def __init__(self, processes_max: int = sys.maxsize) -> None:
        self.processes_max = processes_max
        self._lock = threading.Lock()
        self._listed: dict[object, int] = {}  # session -> number of its processes

    @classmethod
    def of_user(cls, uid: int) -> Quota:
        """The limit of a user: unlimited for root, else the number of processes for which the
        user's share of the daemon's descriptors (USER_SHARE of RLIMIT_NOFILE) suffices."""
        if uid == 0:
            return cls()
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return cls(max(int(soft * USER_SHARE) // DESCRIPTORS_PER_PROCESS, 1))

    def pids(self, session: object, target: Target) -> tuple[list[int], int]:
        """List the target's processes for a session. Returns them and the number of processes that
        the session may have now; the list is longer than this number if the target has more.
        Errors: see Target.pids()."""
        # The lock is held during target.pids(), which may open a pidfd for each process. Otherwise,
        # several sessions could together exceed the limit.
        with self._lock:
            others = sum(self._listed.values()) - self._listed.get(session, 0)
            most = min(PROCESSES_MAX, self.processes_max - others)
            found = target.pids(most)
            self._listed[session] = min(len(found), most)
        return found, most

    def release(self, session: object) -> None:
        """Forget the processes of a session that has ended."""
        with self._lock:
            self._listed.pop(session, None)
