# SPDX-License-Identifier: Apache-2.0
"""A session's part of the shared budget: its curve, its share, and the budget that it holds."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

from sentineld.base.background import Background
from sentineld.base.errors import SentinelError
from sentineld.machine.machine import Machine
from sentineld.machine.shared import SharedBudget
from sentineld.observe.shim_link import ShimLink
from sentineld.plan.division import ALL_FAST, Curve, curve_of
from sentineld.session.live.shapes import Shape
from sentineld.session.plans.following import Following
from sentineld.session.work.planning import PlanInput

log = logging.getLogger(__name__)

TURN_POLL_S = 1.0
"""Interval at which a thread that waits to make a curve checks that the curve is still needed."""
AGAIN_S = 30.0
"""If no plan can be made for a share, the session tries this share again after this time."""
CURVES_MAX = 16
"""Limit on the number of shapes whose curves are kept."""


class _Job(NamedTuple):
    """A curve that is being made."""

    shape: Shape
    making: Background[Curve]


class Sharing:
    """The shared budget, as one session uses it. All calls come from the session's thread.

    All methods except stop() and settle() may only be called while the session shares the budget.
    """

    def __init__(self, link: ShimLink, machine: Machine) -> None:
        self._link = link
        self._machine = machine
        self._curves: dict[Shape, Curve | None] = {}  # None: no curve can be made
        self._learned: Shape | None = None
        self._job: _Job | None = None
        self._stopped = threading.Event()
        self._failed_bytes = 0
        self._again_s = 0.0

    @property
    def _shared(self) -> SharedBudget:
        assert self._machine.shared is not None, "the session shares a budget"
        return self._machine.shared

    def stop(self) -> None:
        """Forget the curves, and abandon a curve that is being made. Called when the process is no
        longer attached, and when the session gets another policy."""
        self._stopped.set()
        self._stopped = threading.Event()
        self._curves, self._learned, self._job = {}, None, None

    def take(self, following: Following) -> int | None:
        """Reserve the share for a plan that is about to be made; returns the share in bytes, or
        None while other sessions hold the memory."""
        share_bytes = self._shared.share_bytes(self._link)
        if not self._reserved(share_bytes):
            return None
        if following.planned is None:
            # An earlier call may have reserved more than the share. Release the excess, because no
            # plan uses it.
            self._shared.budgets.settle(self._link, share_bytes)
        return share_bytes

    def resize(self, following: Following, policy: str) -> int | None:
        """Reserve the share if it differs from the live plan's budget; returns the share in bytes,
        for which the caller then plans again. None: keep the live plan.

        policy: the session's policy; it makes the plans from which the curve is computed.
        """
        planned = following.planned
        assert planned is not None
        self._learn(following, policy)
        share_bytes = self._shared.share_bytes(self._link)
        if share_bytes == planned.budget_bytes:
            return None
        if share_bytes == self._failed_bytes and time.monotonic() < self._again_s:
            return None
        return share_bytes if self._reserved(share_bytes) else None

    def failed(self, share_bytes: int) -> None:
        """Record that no plan could be made for a share."""
        self._failed_bytes, self._again_s = share_bytes, time.monotonic() + AGAIN_S

    def settle(self, following: Following) -> None:
        """Release the part of the held budget (a share, or a budget of the session's own) that
        exceeds the live plan's budget. Memory that is still charged is not released yet, because
        another session could use it before the pages are demoted."""
        budgets = self._machine.budgets_of(self._link)
        planned, managed = following.planned, following.managed
        held_bytes = budgets.held_bytes(self._link)
        needed_bytes = planned.budget_bytes if planned is not None else 0
        if held_bytes <= needed_bytes:
            return
        if managed is not None:
            if not managed.residency_known:
                return  # pages that an earlier plan moved to fast memory may not be counted yet
            needed_bytes = max(needed_bytes, managed.fast_bytes())
        budgets.settle(self._link, min(held_bytes, needed_bytes))

    def _reserved(self, share_bytes: int) -> bool:
        try:
            self._shared.budgets.reserve(self._link, share_bytes)
        except SentinelError:
            return False
        return True

    def _learn(self, following: Following, policy: str) -> None:
        """Report the curve of the live plan's shape to the shared budget. If there is no such curve
        yet, begin to make it."""
        planned = following.planned
        assert planned is not None
        if self._job is not None and self._job.making.done():
            shape, making = self._job
            self._job = None
            if making.problem is not None:
                log.warning("process %d has no curve: %s", self._link.pid, making.problem)
            if len(self._curves) >= CURVES_MAX:
                self._curves.clear()
            self._curves[shape] = making.result
        if planned.shape not in self._curves:
            if self._job is None:
                self._begin(planned.shape, following.plan_input(), policy)
            return
        if self._learned != planned.shape:
            self._learned = planned.shape
            self._shared.learn(self._link, self._curves[planned.shape])

    def _begin(self, shape: Shape, given: PlanInput, policy: str) -> None:
        stopped, shared = self._stopped, self._shared
        machine, uid, profile = self._machine, self._link.uid, given.profile

        def slowdowns_at(budgets_bytes: Sequence[int]) -> list[float]:
            if stopped.is_set():
                raise _not_needed()
            for_tensors = [given.tensor_bytes(one, machine.substrate) for one in budgets_bytes]
            times_ns = machine.planners.step_times_ns(
                uid, policy, profile, given.tiers, for_tensors, ALL_FAST * profile.step_ns
            )
            return [one / profile.step_ns for one in times_ns]

        def make() -> Curve:
            # Many sessions may wait for their turn to make a curve. When a session ends, its
            # waiting thread must end, too.
            while not shared.curve_turn.acquire(timeout=TURN_POLL_S):
                if stopped.is_set():
                    raise _not_needed()
            try:
                curve = curve_of(slowdowns_at, profile.peak_bytes, shared.size_bytes)
            finally:
                shared.curve_turn.release()
            if not any(map(math.isfinite, curve.slowdowns)):
                # With such a curve, divide() (division.py) would give all sessions equal shares.
                raise SentinelError("failed", f"policy {policy} has no plan for any budget")
            return curve

        self._job = _Job(shape, Background("predicting step times by budget", make))


def _not_needed() -> SentinelError:
    return SentinelError("failed", "the curve is not needed any longer")
