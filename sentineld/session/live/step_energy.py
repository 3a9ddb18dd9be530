# SPDX-License-Identifier: Apache-2.0
"""The energy of a session's steps since its plan became live: measured by RAPL, or modelled.

RAPL measures the whole machine: its idle power and the energy of all programs. This energy is not
divided among the sessions, so the figures of concurrent sessions must not be added up. On
emulated tiers, the figure is always modelled, because the machine has no slow tier that RAPL could
measure. docs/explanation/energy.md describes the model and its limits.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from operator import sub
from typing import NamedTuple

from sentineld.host.powercap import EnergyCounters
from sentineld.migrate.ledger import Ledger
from sentineld.model.energy import core_joules, energy_of
from sentineld.model.tiers import Tiers
from sentineld.observe.pidfd import cpu_seconds
from sentineld.observe.shim_link import ShimLink
from sentineld.session.live.shapes import Planned


class Source(StrEnum):
    """The source of an energy figure."""

    RAPL = "rapl"
    """Energy of the machine's packages and memory, by RAPL."""
    MODELLED = "modelled"
    """Energy of the session's cores, accesses and moves, by the energy model."""


@dataclass(frozen=True)
class StepEnergy:
    """Mean energy of a step since the plan became live."""

    joules_per_step: float
    source: Source


class _Counts(NamedTuple):
    """Counters that increase while a plan is live."""

    steps: int
    cpu_s: float
    wait_s: float  # waits at barriers, and the latency of faults
    delay_s: float  # injected delays of emulated tiers
    promoted_bytes: int  # on paged tiers: bytes read from the file
    demoted_bytes: int  # on paged tiers: bytes written to the file
    machine_joules: float


class EnergyUse:
    """The energy of the steps under one live plan. Thread-safe."""

    def __init__(
        self,
        link: ShimLink,
        planned: Planned,
        ledger: Ledger,
        tiers: Tiers,
        counters: EnergyCounters | None,
    ) -> None:
        """Begin to measure at the current step.

        ledger: the live plan's moves. counters: the machine's counters, or None if energy has to be
            modelled. Raises ProcessLookupError if the process has exited.
        """
        self._link, self._ledger, self._tiers, self._counters = link, ledger, tiers, counters
        self._threads = planned.shape.threads
        self._model = energy_of(tiers)
        self._access_joules = planned.plan.predicted.access_joules
        if tiers.paged:
            # The pager counts all bytes that it reads and writes, those of faults included, and
            # _used_joules() adds their energy. So only the energy of accesses to memory is computed
            # from the profile.
            self._access_joules = float(self._model.fast_joules(planned.profile).sum())
        self._begun = self._counts()

    def per_step(self) -> StepEnergy | None:
        """The mean over all steps so far; None before the end of the first step, and if the process
        has exited."""
        try:
            now = self._counts()
        except ProcessLookupError:
            return None
        passed = _Counts(*map(sub, now, self._begun))
        if passed.steps < 1:
            return None
        if self._counters is not None:
            return StepEnergy(passed.machine_joules / passed.steps, Source.RAPL)
        joules = self._used_joules(passed) / passed.steps + self._access_joules
        return StepEnergy(joules, Source.MODELLED)

    def _used_joules(self, passed: _Counts) -> float:
        """The modelled energy of cores and moves. passed: the increase of each counter."""
        computing_s = passed.cpu_s + self._threads * passed.delay_s
        computing_s += self._model.copying_s(passed.promoted_bytes + passed.demoted_bytes)
        return core_joules(computing_s, self._threads * passed.wait_s) + self._model.moved_joules(
            passed.promoted_bytes, passed.demoted_bytes
        )

    def _counts(self) -> _Counts:
        words = self._link.segment.words()
        residency, paging = self._link.residency, self._link.paging
        wait_ns = float(words.barrier_wait_ns)
        promoted_bytes = self._ledger.moved_bytes("promote")
        demoted_bytes = self._ledger.moved_bytes("demote")
        if self._tiers.paged and paging is not None:
            counts = paging.counts()
            wait_ns += counts.faults * self._tiers.tiers[1].read_latency_ns
            promoted_bytes, demoted_bytes = counts.bytes_read, counts.bytes_written
        return _Counts(
            steps=words.step,
            cpu_s=cpu_seconds(self._link.pid),
            wait_s=wait_ns / 1e9,
            delay_s=residency.paid_ns / 1e9 if residency is not None else 0.0,
            promoted_bytes=promoted_bytes,
            demoted_bytes=demoted_bytes,
            machine_joules=self._counters.joules() if self._counters is not None else 0.0,
        )
