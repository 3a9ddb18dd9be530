# SPDX-License-Identifier: Apache-2.0
"""Metering of managed steps: counts the accesses that each tier serves while pages move."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np

from sentineld.machine.substrate import MeteredBy
from sentineld.model import protocol
from sentineld.model.records import PAGE_BYTES
from sentineld.model.tiers import Tiers
from sentineld.observe.shim_link import ShimLink
from sentineld.profile.meter import StepMeter, meter_residency, meter_step
from sentineld.profile.steps import Step
from sentineld.session.intake.sampling import Sampling
from sentineld.session.live.managed import Managed
from sentineld.session.work.request import Request

STEPS_WITHOUT_SUCCESS_MAX = 6
"""Metering fails if more steps in a row than this number cannot be metered."""

GAP_STEPS_MAX = 64
"""Limit on the steps after a gap in the watch that the gap may have affected. They are the steps by
which the daemon is behind the process."""


class Metering(Request[list[StepMeter]], ABC):
    """A request to meter a number of steps."""

    doing = "metered"

    def __init__(self, link: ShimLink, managed: Managed, steps: int) -> None:
        super().__init__()
        self._link = link
        self._managed = managed
        self._wanted = steps
        self._metered: list[StepMeter] = []
        self._unmetered = 0  # steps since the last metered one
        self._counted = False
        """Whether an earlier unmetered step has counted for what prevented metering this one."""
        self._why = ""
        """Further text for the error if too many steps cannot be metered."""

    def on_step(self, step: Step) -> bool:
        """Meter a step; returns whether metering is over, successfully or not."""
        self._counted = False
        metered = self._meter(step)
        if metered is not None:
            self._metered.append(metered)
            self._unmetered, self._why = 0, ""
            self._result = self._metered
            return len(self._metered) >= self._wanted
        if self._problem is not None:
            return True
        self._unmetered += not self._counted
        if self._unmetered > STEPS_WITHOUT_SUCCESS_MAX:
            self._reject(f"too many steps could not be metered completely{self._why}")
            return True
        return False

    @abstractmethod
    def _meter(self, step: Step) -> StepMeter | None:
        """The step's metered figures; None if a part of the step was not observed, or if metering
        cannot go on. In the latter case, calls _reject()."""


class ModuleMetering(Metering):
    """Metering by the kernel module, which logs a page's node at the page's first access in a
    stretch."""

    def __init__(
        self, link: ShimLink, managed: Managed, sampling: Sampling, tiers: Tiers, steps: int
    ) -> None:
        """Arm the session's pages. The first metered step is the first step in which all boundaries
        begin epochs."""
        super().__init__(link, managed, steps)
        self._sampling = sampling
        self._tiers = tiers
        ranges = [space for space in managed.spaces.values() if space[1]]
        self._gaps = managed.mover.gaps
        self._gap_step = -1
        """The last step that a gap in the watch may have affected; see PlanMover.gaps."""
        managed.mover.watch(sampling.sampler, lambda: sampling.arm(ranges, residency=True))
        self._lost = sampling.lost

    def _meter(self, step: Step) -> StepMeter | None:
        self._sampling.collect()
        if self._sampling.problem is not None:
            self._reject(str(self._sampling.problem))
            return None
        boundaries = step.records[step.records["event"] == protocol.Event.BOUNDARY]
        if not np.all(boundaries["address"]):
            return None
        end = np.zeros(1, boundaries.dtype)
        end_epoch = int(boundaries["address"][-1]) + 1
        end["address"], end["time_ns"] = end_epoch, step.end_ns
        before, self._lost = self._lost, self._sampling.lost
        if self._lost > before:
            self._why = ": the module lost records (raise log_records in the configuration)"
            self._sampling.forget_before(end_epoch)
            return None
        in_gap = self._in_gap(step)
        words = self._link.segment.words()
        if in_gap:
            self._why = ": the mover read the residency of the pages"
            self._sampling.forget_before(end_epoch)
            return None
        moves = self._managed.mover.ledger.step(step.number)
        metered = meter_step(
            step.number,
            np.concatenate([boundaries, end]),
            self._sampling.samples(),
            self._tiers,
            PAGE_BYTES,
            words.unmanaged_bytes,
            moves.moved_bytes,
            moves.late_moves,
        )
        self._sampling.forget_before(end_epoch)
        return metered

    def _in_gap(self, step: Step) -> bool:
        """Whether accesses of the step may have been missed."""
        before, self._gaps = self._gaps, self._managed.mover.gaps
        noticed = self._gaps != before or self._gaps % 2 == 1
        if noticed:
            # The gap may have affected all steps up to the process's present one. The process
            # reports its step itself, and could otherwise keep metering from ending.
            present = min(self._link.segment.words().step, step.number + GAP_STEPS_MAX)
            self._gap_step = max(present, step.number)
        self._counted = not noticed
        return step.number <= self._gap_step

    def _disarm(self) -> None:
        self._managed.mover.unwatch(self._sampling.disarm)


class ResidencyMetering(Metering):
    """Metering by the residency map. At each boundary, the shim reports for the stretch that begins
    there: the number of its accesses according to the profile, and how many of these accesses are
    to fast pages."""

    def __init__(self, link: ShimLink, managed: Managed, steps: int) -> None:
        super().__init__(link, managed, steps)
        link.set_flags(on=protocol.Flag.RESIDENCY)

    def _meter(self, step: Step) -> StepMeter | None:
        words = self._link.segment.words()
        moves = self._managed.mover.ledger.step(step.number)
        return meter_residency(
            step,
            self._managed.profile,
            words.unmanaged_bytes,
            moves.moved_bytes,
            moves.late_moves,
        )

    def _release(self) -> None:
        self._link.set_flags(off=protocol.Flag.RESIDENCY)


def begin_metering(
    metered_by: MeteredBy,
    link: ShimLink,
    managed: Managed,
    sampling: Callable[[], Sampling],
    tiers: Tiers,
    steps: int,
) -> Metering:
    """Begin to meter steps. sampling: returns a Sampling that uses the kernel module. Raises
    SentinelError."""
    if metered_by is MeteredBy.RESIDENCY_MAP:
        return ResidencyMetering(link, managed, steps)
    return ModuleMetering(link, managed, sampling(), tiers, steps)
