# SPDX-License-Identifier: Apache-2.0
"""A request: an action of a session for a waiting thread."""

from __future__ import annotations

import threading
from typing import Generic, TypeVar

from sentineld.base.errors import SentinelError
from sentineld.model.records import OpAccesses
from sentineld.profile.steps import Step

Result = TypeVar("Result")


class Request(Generic[Result]):
    """Base of all requests. The waiting thread calls over() and wait(). The session's thread calls
    all other methods.

    A subclass sets _result, or calls _reject(), before the session calls finish().
    """

    doing = ""
    """A past participle that completes the message "process 7 is being ..."."""

    def __init__(self) -> None:
        self._result: Result | None = None
        self._problem: SentinelError | None = None
        self._finished = threading.Event()

    def on_step(self, step: Step) -> bool:
        """Handle a complete recorded step; returns whether the request is over."""
        return False

    def on_op_accesses(self, accesses: OpAccesses) -> bool:
        """Handle the operators' accesses of a step; returns whether this request uses them."""
        return False

    def collect(self) -> None:
        """Drain the kernel's buffers that this request reads, if any. Call this often, so that the
        buffers don't overflow."""

    def finish(self) -> None:
        """Stop observing and wake the waiting thread; the session goes on."""
        self._disarm()
        self._release()
        self._finished.set()

    def fail(self, reason: str) -> None:
        """Wake the waiting thread with an error. Unlike finish(), this does not stop observing: the
        session, which is about to stop managing the process, stops moves and sampling itself."""
        self._reject(reason)
        self._release()
        self._finished.set()

    def over(self, timeout_s: float) -> bool:
        """Block until the request is over, at most for timeout_s; returns whether it is over."""
        return self._finished.wait(timeout_s)

    def reject(self, reason: str) -> None:
        """Give the waiting thread an error instead of a result; the caller calls finish() next."""
        self._reject(reason)

    def wait(self) -> Result:
        """Block until the request is over; returns its result. Raises SentinelError."""
        self._finished.wait()
        if self._problem is not None:
            raise self._problem
        assert self._result is not None
        return self._result

    @property
    def outcome(self) -> str:
        """The request's success, or the reason for its failure, as text for lifecycle.Status.reason
        of the session."""
        return self.doing if self._problem is None else f"not {self.doing}: {self._problem.message}"

    def _reject(self, reason: str) -> None:
        self._problem = SentinelError("failed", reason, "see sentinelctl status")

    def _disarm(self) -> None:
        """Disarm pages. fail() does not call this, because the session disarms the pages itself."""

    def _release(self) -> None:
        """Undo effects of the request that disarming does not undo. fail() calls this, too."""
