# SPDX-License-Identifier: Apache-2.0
"""A session's requests, which it serves one at a time: metering, recording, and replanning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sentineld.base.errors import SentinelError
from sentineld.machine.machine import Machine
from sentineld.model import protocol
from sentineld.model.records import OpAccesses
from sentineld.model.tiers import Tiers
from sentineld.observe.shim_link import ShimLink
from sentineld.profile.meter import StepMeter
from sentineld.profile.steps import Step
from sentineld.profile.trace import Trace
from sentineld.session.intake.inbox import Inbox
from sentineld.session.intake.sampling import Sampling
from sentineld.session.live.managed import Managed
from sentineld.session.work.metering import begin_metering
from sentineld.session.work.planning import Goal, PlanInput, planned_for
from sentineld.session.work.recording import Recording
from sentineld.session.work.replanning import Replanning
from sentineld.session.work.request import Request


class Requests:
    """The current request of one session, if any. All calls come from the session's thread."""

    def __init__(self, link: ShimLink, machine: Machine, sample: Callable[[], Sampling]) -> None:
        """sample: returns a Sampling that uses the kernel module; raises SentinelError."""
        self._link = link
        self._machine = machine
        self._sample = sample
        self._replanning: Replanning | None = None
        self._abandoned: Replanning | None = None  # cancelled, but its planning may still run
        self.current: Request[Any] | None = None

    def require_none(self) -> None:
        """Raise SentinelError while a request is being served."""
        if self.current is not None:
            what = f"process {self._link.pid} is being {self.current.doing}"
            raise SentinelError("wrong-state", what, "wait until that is done")

    def require_no_planning(self) -> None:
        """Raise SentinelError while a request is being served, or while the planning of an
        abandoned request still runs. Otherwise, a caller could start any number of threads by
        repeatedly beginning a request and hanging up."""
        self.require_none()
        if self._abandoned is not None and not self._abandoned.ready():
            raise SentinelError(
                "busy",
                f"the planning for an earlier request of process {self._link.pid} still runs",
                "try again later: planning runs to its end even after its request has ended",
            )

    def meter(self, managed: Managed, tiers: Tiers, steps: int) -> Request[list[StepMeter]]:
        """Begin to meter this number of steps. Raises SentinelError."""
        self.require_none()
        metered_by = self._machine.substrate.metered_by
        metering = begin_metering(metered_by, self._link, managed, self._sample, tiers, steps)
        self.current = metering
        return metering

    def record(self, managed: Managed | None, inbox: Inbox, steps: int) -> Request[Trace]:
        """Begin to record. inbox: see Recording. Raises SentinelError."""
        self.require_none()
        recording = Recording(self._link, self._machine, managed, self._sample, inbox, steps)
        self.current = recording
        return recording

    def plan_again(self, goal: Goal, plan_input: PlanInput) -> Replanning:
        """Begin to plan for another budget or policy, or for other placements of tensors. Raises
        SentinelError (see require_no_planning()), or RuntimeError if no thread can be started."""
        self.require_no_planning()
        replanning = Replanning(
            goal, lambda: planned_for(goal, plan_input, self._machine, self._link)
        )
        self._abandoned = None
        self.current = self._replanning = replanning
        return replanning

    def replanned(self) -> Replanning | None:
        """The replanning whose planning has ended, or None. The caller must still call finish()."""
        replanning = self._replanning
        return replanning if replanning is not None and replanning.ready() else None

    def finish(self) -> None:
        """End the current request and wake its waiting thread."""
        assert self.current is not None
        self.current.finish()
        self._clear()

    def cancel(self, request: Request[Any]) -> bool:
        """Give up a request; returns whether it was still being served."""
        if self.current is not request:
            return False
        self._link.set_flags(off=protocol.Flag.RECORD)
        request.reject("its caller has hung up")
        self.finish()
        return True

    def collect(self) -> None:
        """Drain the kernel's buffers that the current request reads, if any. Call this often, so
        that the buffers don't overflow."""
        if self.current is not None:
            self.current.collect()

    def on_step(self, step: Step) -> Request[Any] | None:
        """Handle a complete recorded step; returns the request that the step finishes, if any."""
        request = self.current
        if request is None or not request.on_step(step):
            return None
        self._link.set_flags(off=protocol.Flag.RECORD)
        self.finish()
        return request

    def on_op_accesses(self, accesses: OpAccesses) -> bool:
        """Handle the operators' accesses of a step; returns whether a request uses them."""
        return self.current is not None and self.current.on_op_accesses(accesses)

    def fail(self, reason: str) -> None:
        """Fail the current request, if there is one: its waiting thread gets an error."""
        if self.current is not None:
            self.current.fail(f"process {self._link.pid}: {reason}")
            self._clear()

    def _clear(self) -> None:
        if self._replanning is not None and not self._replanning.ready():
            self._abandoned = self._replanning
        self.current = self._replanning = None
