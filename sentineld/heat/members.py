# SPDX-License-Identifier: Apache-2.0
"""The processes that a session manages now. The processes of a group change over time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from sentineld.base.errors import SentinelError
from sentineld.base.text import printable
from sentineld.heat.member import Member
from sentineld.heat.quota import Quota
from sentineld.heat.spans import SPANS
from sentineld.heat.target import LISTED_MAX, PROCESSES_MAX, Target

log = logging.getLogger(__name__)

Result = TypeVar("Result")

LOOK_S, LOOK_S_MAX = 1.0, 10.0
"""Limits on the interval at which a group's processes are listed."""
LOOK_SHARE = 0.005
"""Limit on the CPU time of listing the processes, as a share of one core. If listing takes long,
this limit lengthens the interval, up to LOOK_S_MAX. It also limits the CPU time of those lists that
are made earlier because a member has left, including the opening of the new members."""
LOOK_SHARE_MAX = 0.05
"""Limit on the CPU time of listing the processes if the interval would exceed LOOK_S_MAX, as in a
cgroup with very many descendants. This limit lengthens the interval even beyond LOOK_S_MAX."""
_UNREADABLE = (ValueError, IndexError)
"""Errors of the code that reads files in /proc. A group's session must not end because of such an
error with one process: another user may own the process."""
RETRY_S, RETRY_S_MAX = 10.0, 100.0
"""Limits on the interval at which the session tries again to manage the processes that were left
out."""
RETRY_SHARE = 0.005
"""Limit on the CPU time of these attempts, as a share of one core. If they take long, this limit
lengthens the interval, up to RETRY_S_MAX."""


class Members:
    """The processes of a target that the session has opened and manages. Once the session's thread
    has started, only that thread uses this object."""

    def __init__(self, target: Target, caller_uid: int, quota: Quota | None = None) -> None:
        """caller_uid: the user who manages the target; see Member. quota: of this user; None:
        unlimited. Raises SentinelError if the target has no process that the user may manage, or
        more processes than the user may have."""
        self._target = target
        self._quota = quota or Quota()
        self._most = PROCESSES_MAX  # number of processes that the session may have
        self._caller_uid = caller_uid
        self._next_span = 0
        self._by_pid: dict[int, Member] = {}
        self._left_out: dict[int, SentinelError] = {}
        self._retry_s = self._next_look_s = 0.0
        self._early_look_s = 0.0  # time of the next list if a member has left
        self.changes = 0
        """Number of times that processes have joined or left."""
        self.beyond = 0
        """Number of processes left out because of PROCESSES_MAX or of the user's quota."""
        try:
            self._require_some()
        except BaseException:
            self.close()
            raise

    def _require_some(self) -> None:
        target = self._target
        try:
            self._look()
        except ProcessLookupError:
            raise SentinelError(
                "no-such-process", f"{target.title} has no processes", "start its program first"
            ) from None
        if self.beyond and self._most < PROCESSES_MAX:
            raise SentinelError(
                "busy",
                f"{target.title} cannot be managed: all sessions of user {self._caller_uid} may "
                f"have {self._quota.processes_max} processes",
                "detach other processes, or raise LimitNOFILE of the daemon's unit",
            )
        if self.beyond:
            raise SentinelError(
                "wrong-state",
                f"{target.title} has more than {PROCESSES_MAX} processes",
                "give a smaller group",
            )
        if not self._by_pid or target.pid in self._left_out:
            raise self.refusal()

    def refusal(self) -> SentinelError:
        """The error that says why the target cannot be managed. Call this only if the target has
        no members, or is a tree whose root is not a member."""
        target = self._target
        errors = list(self._left_out.values())
        error = self._left_out.get(target.pid) or (errors[0] if errors else None)
        if error is None:
            return SentinelError("no-such-process", f"{target.title} has exited", "see ps -e")
        if not target.is_group:
            return error
        message = f"{target.title} cannot be managed: {error.message}"
        return SentinelError(error.code, message, error.hint)

    def __iter__(self) -> Iterator[Member]:
        """The members, in the order in which they joined."""
        return iter(list(self._by_pid.values()))

    def __len__(self) -> int:
        return len(self._by_pid)

    @property
    def pids(self) -> tuple[int, ...]:
        """The members' process IDs."""
        return tuple(self._by_pid)

    @property
    def left_out(self) -> int:
        """Number of processes of the target that are not managed."""
        return len(self._left_out) + self.beyond

    @property
    def left_out_reason(self) -> str:
        """Why one of the processes is not managed; empty if all are managed."""
        for error in self._left_out.values():
            return error.message
        if not self.beyond:
            return ""
        if self._most < PROCESSES_MAX:
            return f"all sessions of its user have {self._quota.processes_max} processes already"
        return f"the session has {PROCESSES_MAX} processes already"

    def of_span(self, span: int) -> Member | None:
        """The member with this span; None if it has left."""
        return next((one for one in self._by_pid.values() if one.span == span), None)

    def look(self) -> None:
        """If a listing is due, list the processes of a group: new processes join, and processes
        that are no longer in the group leave. Raises ProcessLookupError if no process of the group
        is left, and SentinelError if the processes cannot be listed."""
        if self._target.is_group and time.monotonic() >= self._next_look_s:
            self._look()

    def _look(self) -> None:
        began_s = time.thread_time()
        found, self._most = self._quota.pids(self, self._target)
        listing_s = time.thread_time() - began_s
        retried: set[int] | None = None
        if time.monotonic() >= self._retry_s:
            retried, self._left_out = set(self._left_out), {}
        listed = set(found)
        complete = len(found) < LISTED_MAX
        for member in self:
            if complete and member.pid not in listed:
                self.lose(member)
        for pid in [pid for pid in self._left_out if pid not in listed]:
            del self._left_out[pid]
        new = [pid for pid in found if pid not in self._by_pid and pid not in self._left_out]
        room = self._most - len(self._by_pid) - len(self._left_out)
        self.beyond = max(len(new) - room, 0)
        began_s, retrying_s = time.thread_time(), 0.0
        for pid in new[: max(room, 0)]:
            before_s = time.thread_time()
            self._join(pid)
            if retried and pid in retried:
                retrying_s += time.thread_time() - before_s
        joining_s = time.thread_time() - began_s
        now_s = time.monotonic()
        if retried is not None:
            self._retry_s = now_s + min(max(RETRY_S, retrying_s / RETRY_SHARE), RETRY_S_MAX)
        interval_s = max(
            LOOK_S, min(listing_s / LOOK_SHARE, LOOK_S_MAX), listing_s / LOOK_SHARE_MAX
        )
        self._next_look_s = now_s + interval_s
        self._early_look_s = now_s + min(interval_s, (listing_s + joining_s) / LOOK_SHARE)

    def _join(self, pid: int) -> None:
        try:
            self._by_pid[pid] = Member(pid, self._caller_uid, self._free_span())
        except SentinelError as error:
            if error.code != "no-such-process" or not self._target.is_group:
                self._left_out[pid] = error
        except (OSError, *_UNREADABLE) as error:
            self._left_out[pid] = _as_refusal(pid, error)
        else:
            self.changes += 1
            self._next_span = (self._by_pid[pid].span + 1) % SPANS

    def _free_span(self) -> int:
        """The next span that no member has."""
        used = {member.span for member in self}
        span = self._next_span
        while span in used:
            span = (span + 1) % SPANS
        return span

    def each(self, act: Callable[[Member], Result]) -> list[Result]:
        """The result of act() for each member.

        If act() raises an error for a member of a group, this member leaves. If the target is a
        single process, the error is raised: ProcessLookupError, SentinelError or OSError.
        """
        return [result for member in self for result in self.one(member, act)]

    def one(self, member: Member, act: Callable[[Member], Result]) -> list[Result]:
        """The result of act() for a member; empty if the member has left. Errors: see each()."""
        try:
            return [act(member)]
        except ProcessLookupError:
            self.lose(member)
            if not self._target.is_group:
                raise
        except (SentinelError, OSError, *_UNREADABLE) as error:
            refusal = _as_refusal(member.pid, error)
            if not self._target.is_group:
                if isinstance(error, _UNREADABLE):
                    raise refusal from error
                raise
            self.lose(member)
            self._left_out[member.pid] = refusal
        return []

    def lose(self, member: Member) -> None:
        """Stop managing a member. If the process has called exec(), it joins again as a new
        member."""
        if self._by_pid.pop(member.pid, None) is not None:
            self.changes += 1
            self._next_look_s = min(self._next_look_s, self._early_look_s)
        member.close()

    def leave_out(self, pid: int, reason: str) -> None:
        """Stop managing a process, and leave it out until the next retry (RETRY_S)."""
        member = self._by_pid.get(pid)
        if member is not None:
            self.lose(member)
            self._left_out[pid] = SentinelError("wrong-state", f"process {pid} {reason}")

    def close(self) -> None:
        """Release all members."""
        for member in self:
            self.lose(member)
        self._quota.release(self)


def _as_refusal(pid: int, error: Exception) -> SentinelError:
    """The error that says why a process is left out. An OSError occurs, for example, if the daemon
    has no free descriptor."""
    if isinstance(error, SentinelError):
        return error
    if isinstance(error, OSError):
        return SentinelError("failed", f"process {pid}: {error.strerror}", "see the daemon's log")
    log.warning("the files of process %d in /proc cannot be read", pid, exc_info=error)
    return SentinelError(
        "failed",
        f"the files of process {pid} in /proc cannot be read: {printable(str(error))}",
        "see the daemon's log",
    )
