# SPDX-License-Identifier: Apache-2.0
"""Metering of managed steps: the tier that served each access, while pages move."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np

from sentineld.base.errors import SentinelError
from sentineld.machine.substrate import MeteredBy
from sentineld.model import protocol
from sentineld.model.tiers import Tiers
from sentineld.observe.shimlink import ShimLink
from sentineld.profile.meter import StepMeter, meter_residency, meter_step
from sentineld.profile.steps import Step
from sentineld.session.intake.sampling import Sampling
from sentineld.session.live.managed import Managed

STEPS_WITHOUT_SUCCESS_MAX = 6


class Metering(ABC):
    """One request to meter some steps. The session's thread feeds it; another one waits."""

    doing = "metered"

    def __init__(self, link: ShimLink, managed: Managed, steps: int) -> None:
        self._link = link
        self._managed = managed
        self._wanted = steps
        self._metered: list[StepMeter] = []
        self._unmetered = 0
        self._finished = threading.Event()
        self._failure = ""

    def on_step(self, step: Step) -> bool:
        """A whole step has passed; True once enough of them are metered."""
        metered = self._meter(step)
        if metered is not None:
            self._metered.append(metered)
            return len(self._metered) >= self._wanted
        self._unmetered += 1
        if self._unmetered > STEPS_WITHOUT_SUCCESS_MAX:
            self.fail("no step was metered whole")
            return True
        return False

    @abstractmethod
    def _meter(self, step: Step) -> StepMeter | None:
        """The step's figures; None if it was not metered whole."""

    @abstractmethod
    def _stop(self) -> None:
        """Have nothing more counted."""

    def done(self) -> None:
        """Stop, and let the waiting thread go."""
        self._stop()
        self._finished.set()

    def fail(self, reason: str) -> None:
        """Let the waiting thread go with an error."""
        self._failure = reason
        self._finished.set()

    def wait(self) -> list[StepMeter]:
        """The metered steps. Raises SentinelError."""
        self._finished.wait()
        if self._failure:
            raise SentinelError("failed", self._failure, "see sentinelctl status")
        return self._metered


class ModuleMetering(Metering):
    """By the kernel module: each page's first access in a stretch, at the node it was on."""

    def __init__(
        self, link: ShimLink, managed: Managed, sampling: Sampling, tiers: Tiers, steps: int
    ) -> None:
        """Arms the session's spaces at once; the first whole step under epochs counts."""
        super().__init__(link, managed, steps)
        self._sampling = sampling
        self._tiers = tiers
        ranges = [space for space in managed.spaces.values() if space[1]]
        managed.mover.watch(sampling.sampler, lambda: sampling.arm(ranges, residency=True))

    def _meter(self, step: Step) -> StepMeter | None:
        boundaries = step.records[step.records["event"] == protocol.Event.BOUNDARY]
        if not np.all(boundaries["address"]):
            return None
        end = np.zeros(1, boundaries.dtype)
        end_epoch = int(boundaries["address"][-1]) + 1
        end["address"], end["time_ns"] = end_epoch, step.end_ns
        self._sampling.collect()
        words = self._link.segment.words()
        moves = self._managed.mover.ledger.step(step.number)
        metered = meter_step(
            step.number,
            np.concatenate([boundaries, end]),
            self._sampling.samples(),
            self._tiers,
            4096,
            words.unmanaged_bytes,
            moves.moved_bytes,
            moves.late_moves,
        )
        self._sampling.forget_before(end_epoch)
        return metered

    def _stop(self) -> None:
        self._managed.mover.unwatch()
        self._sampling.disarm()


class ResidencyMetering(Metering):
    """On emulated tiers: the shim tells at each boundary where the pages are that the profile says
    the stretch accesses."""

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

    def _stop(self) -> None:
        self._link.set_flags(off=protocol.Flag.RESIDENCY)

    def fail(self, reason: str) -> None:
        """Also stop: nobody else takes the flag away."""
        self._stop()
        super().fail(reason)


def begin_metering(
    metered_by: MeteredBy,
    link: ShimLink,
    managed: Managed,
    sampling: Callable[[], Sampling],
    tiers: Tiers,
    steps: int,
) -> Metering:
    """Begin to meter steps. sampling: opens one by the module. Raises SentinelError."""
    if metered_by is MeteredBy.RESIDENCY_MAP:
        return ResidencyMetering(link, managed, steps)
    return ModuleMetering(link, managed, sampling(), tiers, steps)
