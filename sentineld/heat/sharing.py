# SPDX-License-Identifier: Apache-2.0
"""The shared budget, as one session of policy `temperature` uses it."""

from __future__ import annotations

import time
from collections.abc import Hashable

from sentineld.machine.machine import Machine
from sentineld.machine.shared import SharedBudget
from sentineld.plan.division import Curve, Terms
from sentineld.policies.temperature.curve import differ

CHANGE_MIN = 0.02
"""The session reports a new curve if the slowdown at any budget differs by more than this share
from that of the reported curve."""
REPORT_S = 60.0
"""If the last report is older than this, the session reports a new curve in any case."""
DIVIDE_SHARE = 0.005
"""Limit on the CPU time for dividing the shared budget again after the session's reports, as a
share of one core."""
ROOM_SHARE = 1 / 8
"""Room that a session reports beyond the size of its processes, as a share of this size. The
processes can grow into it at once."""
STALE_SHARE = 1 / 32
"""The session reports a new size if the reported size is less than (1 + STALE_SHARE) times, or more
than (1 + 2 * ROOM_SHARE) times, the present size of the processes."""

STUCK_S = 10.0
"""If a session waits for its share and has got no memory for this time, it stops waiting, because
the other sessions may have memory that they cannot page out."""


class HeatSharing:
    """One session's participation in the shared budget: the session joins, reports its curve and
    its size, and takes its share. All calls come from the session's thread, or from the thread that
    creates the session.

    All methods except join() may only be called while the session shares the budget.
    """

    def __init__(self, holder: Hashable, machine: Machine) -> None:
        self._holder = holder
        self._machine = machine
        self.curve: Curve | None = None
        """The curve that was reported last."""
        self._room_bytes = 0  # the size that was reported last; it includes ROOM_SHARE
        self._reported_s = self._next_s = 0.0
        self.waits = False
        """Whether other sessions still use a part of the share."""
        self._held_bytes = 0
        self._grown_s = time.monotonic()  # when held memory last grew or was the whole share

    @property
    def _shared(self) -> SharedBudget:
        return self._machine.require_shared()

    def join(self, terms: Terms, size_bytes: int) -> None:
        """Let the session share the budget, or change its terms. size_bytes: size of the processes.
        Raises SentinelError."""
        self._shared.join(self._holder, terms)
        self._report(self.curve, size_bytes)
        self._shared.count(self._holder)

    def take(self, resident_bytes: int) -> int:
        """Bring the memory that the session holds (see SharedBudget) closer to its share. Returns
        the budget in bytes: the smaller one of held memory and share.

        Held memory is released only when the processes no longer use it. Otherwise, another session
        could take it while their pages still fill it.
        """
        budgets, share_bytes = self._shared.budgets, self._shared.share_bytes(self._holder)
        held_bytes = budgets.grow(self._holder, share_bytes)
        if held_bytes > share_bytes:
            held_bytes = max(share_bytes, min(held_bytes, resident_bytes))
            budgets.settle(self._holder, held_bytes)
        self.waits = held_bytes < share_bytes
        if held_bytes > self._held_bytes or not self.waits:
            self._grown_s = time.monotonic()
        self._held_bytes = held_bytes
        return min(held_bytes, share_bytes)

    @property
    def stuck(self) -> bool:
        """Whether the session waits for its share, but has got no memory for STUCK_S."""
        return self.waits and time.monotonic() >= self._grown_s + STUCK_S

    def learn(self, curve: Curve, size_bytes: int) -> None:
        """Report a curve to the shared budget if it has changed noticeably or the last report is
        older than REPORT_S. The more CPU time reports take, the fewer are made."""
        now_s = time.monotonic()
        changed = self.curve is None or differ(curve, self.curve, CHANGE_MIN)
        if now_s >= (self._next_s if changed else self._reported_s + REPORT_S):
            self._report(curve, size_bytes)
        else:
            self.follow(size_bytes)

    def follow(self, size_bytes: int) -> None:
        """Report the size of the processes if it has changed noticeably."""
        lowest, highest = size_bytes * (1 + STALE_SHARE), size_bytes * (1 + 2 * ROOM_SHARE)
        if not lowest <= self._room_bytes <= highest and time.monotonic() >= self._next_s:
            self._report(self.curve, size_bytes)

    def _report(self, curve: Curve | None, size_bytes: int) -> None:
        began_s = time.thread_time()
        self._room_bytes = int(size_bytes * (1 + ROOM_SHARE))
        self._shared.learn(self._holder, curve, self._room_bytes)
        self.curve, self._reported_s = curve, time.monotonic()
        self._next_s = self._reported_s + (time.thread_time() - began_s) / DIVIDE_SHARE
