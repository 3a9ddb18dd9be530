# SPDX-License-Identifier: Apache-2.0
"""What a session does for somebody who waits, one at a time: metering, recording, going over to
another budget or policy."""

from __future__ import annotations

from collections.abc import Callable

from sentineld.base.errors import SentinelError
from sentineld.machine.machine import Machine
from sentineld.model import protocol
from sentineld.model.records import OpAccesses
from sentineld.model.tiers import Tiers
from sentineld.observe.shimlink import ShimLink
from sentineld.profile.steps import Step
from sentineld.session.intake.sampling import Sampling
from sentineld.session.live.managed import Managed
from sentineld.session.work.metering import Metering, begin_metering
from sentineld.session.work.planning import Goal, Known, planned_for
from sentineld.session.work.recording import Recording
from sentineld.session.work.replanning import Replanning


class Errands:
    """All calls come from the session's thread."""

    def __init__(self, link: ShimLink, machine: Machine, sample: Callable[[], Sampling]) -> None:
        """sample: the session's sampling by an exact backend; raises SentinelError."""
        self._link = link
        self._machine = machine
        self._sample = sample
        self.current: Metering | Recording | Replanning | None = None

    def require_none(self) -> None:
        """Raise SentinelError while there is one."""
        if self.current is not None:
            what = f"process {self._link.pid} is being {self.current.doing}"
            raise SentinelError("wrong-state", what, "wait until that is done")

    def meter(self, managed: Managed, tiers: Tiers, steps: int) -> Metering:
        """Begin to meter. Raises SentinelError."""
        self.require_none()
        metered_by = self._machine.substrate.metered_by
        metering = begin_metering(metered_by, self._link, managed, self._sample, tiers, steps)
        self.current = metering
        return metering

    def record(
        self, managed: Managed | None, layers: Callable[[], tuple[str, ...]], steps: int
    ) -> Recording:
        """Begin to record. Raises SentinelError."""
        self.require_none()
        recording = Recording(self._link, self._machine, managed, self._sample, layers, steps)
        self.current = recording
        return recording

    def plan_again(self, goal: Goal, known: Known) -> Replanning:
        """Begin to plan for another goal. Raises SentinelError."""
        self.require_none()
        replanning = Replanning(goal, lambda: planned_for(goal, known, self._machine))
        self.current = replanning
        return replanning

    def replanned(self) -> Replanning | None:
        """The replanning, if it is ready: an errand until finish()."""
        errand = self.current
        return errand if isinstance(errand, Replanning) and errand.ready() else None

    def finish(self) -> None:
        """Let who waits go: what it waits for is there."""
        assert self.current is not None
        self.current.done()
        self.current = None

    def collect(self) -> None:
        """Take what waits to be taken; to be called often."""
        if isinstance(self.current, Recording):
            self.current.collect()

    def on_step(self, step: Step) -> Recording | None:
        """A whole step has passed; the recording that ends with it, if one does."""
        errand = self.current
        if errand is None or not errand.on_step(step):
            return None
        self._link.set_flags(off=protocol.Flag.RECORD)
        self.finish()
        return errand if isinstance(errand, Recording) else None

    def on_op_accesses(self, accesses: OpAccesses) -> bool:
        """The shim saw an operators' step; whether it was asked for here."""
        if not isinstance(self.current, Recording):
            return False
        self.current.on_op_accesses(accesses)
        return True

    def fail(self, reason: str) -> None:
        """Let who waits go with an error."""
        if self.current is not None:
            self.current.fail(f"process {self._link.pid}: {reason}")
            self.current = None
