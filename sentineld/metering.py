# SPDX-License-Identifier: Apache-2.0
"""Metering whole managed steps of a session with the kernel module, while its pages move."""

from __future__ import annotations

import threading

import numpy as np

from sentineld.errors import SentinelError
from sentineld.managed import Managed
from sentineld.observe.shimlink import ShimLink
from sentineld.profile.meter import StepMeter, meter_step
from sentineld.profile.steps import Step
from sentineld.sampling import Sampling
from sentineld.shim import protocol
from sentineld.tiers import Tiers

STEPS_WITHOUT_SUCCESS_MAX = 6


class Metering:
    """One request to meter some steps. The session's thread feeds it; another one waits."""

    doing = "metered"

    def __init__(
        self, link: ShimLink, managed: Managed, sampling: Sampling, tiers: Tiers, steps: int
    ) -> None:
        """Arms the session's spaces at once; the first whole step under epochs counts."""
        self._link = link
        self._managed = managed
        self._sampling = sampling
        self._tiers = tiers
        self._wanted = steps
        self._metered: list[StepMeter] = []
        self._unmetered = 0
        self._finished = threading.Event()
        self._failure = ""
        managed.mover.set_backend(sampling.sampler)
        sampling.arm([space for space in managed.spaces.values() if space[1]], residency=True)

    def on_step(self, step: Step) -> bool:
        """A whole step has passed; True once enough of them are metered."""
        boundaries = step.records[step.records["event"] == protocol.Event.BOUNDARY]
        if not np.all(boundaries["address"]):
            self._unmetered += 1
            if self._unmetered > STEPS_WITHOUT_SUCCESS_MAX:
                self.fail("no step was metered whole")
                return True
            return False
        end = np.zeros(1, boundaries.dtype)
        end_epoch = int(boundaries["address"][-1]) + 1
        end["address"], end["time_ns"] = end_epoch, step.end_ns
        self._sampling.collect()
        words = self._link.segment.words()
        moves = self._managed.mover.ledger.step(step.number)
        self._metered.append(
            meter_step(
                step.number,
                np.concatenate([boundaries, end]),
                self._sampling.samples(),
                self._tiers,
                4096,
                words.small_bytes + words.fallback_bytes,
                moves.moved_bytes,
                moves.late_moves,
            )
        )
        self._sampling.forget_before(end_epoch)
        return len(self._metered) >= self._wanted

    def done(self) -> None:
        """Disarm and let the waiting thread go."""
        self._managed.mover.set_backend(None)
        self._sampling.disarm()
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
