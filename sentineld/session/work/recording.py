# SPDX-License-Identifier: Apache-2.0
"""Recording a trace: some steps of a process as they are, then one whose accesses are seen.

A process that nobody manages gets the cuts that a plan would have, in a layout
that plans nothing, and is let go of afterwards. A managed one is recorded
inside its plan: it keeps its cuts and its places, and pages go on moving.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from sentineld import __version__
from sentineld.base.errors import SentinelError
from sentineld.base.text import text_of
from sentineld.base.units import FastBudget
from sentineld.machine.machine import Machine
from sentineld.model.kernel_events import FAULT_DTYPE
from sentineld.model.plan import Space
from sentineld.model.records import (
    OP_ACCESS_DTYPE,
    SAMPLE_DTYPE,
    Mapped,
    OpAccesses,
    Records,
)
from sentineld.model.tiers import Tiers
from sentineld.observe.mappings import read_mappings
from sentineld.observe.shimlink import ShimLink
from sentineld.plan.cuts import choose_cuts, provisional_layout
from sentineld.profile.circle import allocation_profile
from sentineld.profile.plausible import ADDRESS_MAX
from sentineld.profile.steps import Step, births, boundary_records, cut_count, identical
from sentineld.profile.trace import Trace
from sentineld.session.intake.sampling import Sampling
from sentineld.session.live.managed import Managed
from sentineld.session.live.sending import send_layout
from sentineld.session.work.request import Request

STEPS_WITHOUT_REPEAT_MAX = 40
"""Steps that may pass, beyond those asked for, until enough of them in a row are alike."""
ACCESS_STEPS_MIN = 6
ACCESS_WAIT_S = 5.0
"""So many steps, and so long, to wait for one that was seen whole and for what the framework says
of it: steps of a few milliseconds pass by the dozen before its message is looked at."""

CANDIDATE_RECORDS_MAX = 1 << 20
"""Records of steps kept meanwhile, beyond ACCESS_STEPS_MIN steps."""

_NO_TIERS = Tiers((), 0.0, "none")


class Recording(Request[Trace]):
    """A request to record a number of steps."""

    doing = "recorded"

    def __init__(
        self,
        link: ShimLink,
        machine: Machine,
        managed: Managed | None,
        sample: Callable[[], Sampling],
        layers: Callable[[], tuple[str, ...]],
        steps: int,
    ) -> None:
        """sample: the session's sampling, attached at its first use; raises SentinelError where
        no backend works. layers: their names as known by then. steps: whole steps to record."""
        super().__init__()
        self._link = link
        self._machine = machine
        self._managed = managed
        self._sample = sample
        self._layers = layers
        self._wanted = steps
        self._alike: deque[Step] = deque(maxlen=max(steps, 2))
        self._seen = 0
        self._ring_lost = link.segment.words().ring_lost
        self._cuts: npt.NDArray[np.uint32] | None = None
        self._sampling: Sampling | None = None
        self._log_lost = 0
        self._candidates: deque[Step] = deque()
        self._candidate_records = 0
        self._access_since_s = 0.0
        self._access: tuple[Step, Records] | None = None
        self._ops: OpAccesses | None = None
        self._notes: list[str] = []
        self._faults: Records | None = None
        self._since_ns = 0
        try:
            machine.probing.record(link.pid)
            self._faults = np.empty(0, FAULT_DTYPE)
        except SentinelError as error:
            self._notes.append(f"no page faults were recorded: {error}")

    def collect(self) -> None:
        """Take page faults that wait to be taken; to be called often."""
        self._machine.probing.collect(self._link.pid, self._since_ns)

    def on_step(self, step: Step) -> bool:
        """A whole step has passed; True once the recording is over."""
        self._seen += 1
        if self._cuts is None:
            return self._gather(step)
        return self._observe(step)

    def on_op_accesses(self, accesses: OpAccesses) -> bool:
        """Take the operators' accesses of a step."""
        self._ops = accesses
        return True

    def _disarm(self) -> None:
        self._stop_sampling()

    def _release(self) -> None:
        self._machine.probing.stop_recording(self._link.pid)

    def _gather(self, step: Step) -> bool:
        """Wait for enough steps in a row that allocate alike."""
        if self._alike and not identical(self._alike[-1], step):
            self._alike.clear()
        self._alike.append(step)
        self._since_ns = _begin_ns(self._alike[0])
        if len(self._alike) == self._alike.maxlen:
            self._begin_access(step)
        elif self._seen > self._wanted + STEPS_WITHOUT_REPEAT_MAX:
            self._reject(f"process {self._link.pid} allocates differently from step to step")
            return True
        return False

    def _begin_access(self, step: Step) -> None:
        """Have the next step seen: by page sampling if there is any, and by torch.profiler."""
        self._seen, self._access_since_s = 0, time.monotonic()
        # From here on pages are armed, and the faults are the sampling's own.
        faults = self._machine.probing.stop_recording(self._link.pid)
        if self._faults is not None:
            self._faults = faults.rows
        if faults.lost:
            self._notes.append(f"{faults.lost} page faults were lost: too many for their ring")
        segment = self._link.segment
        if self._managed is not None:
            self._cuts = self._managed.plan.layout.cuts
            ranges = [space for space in self._managed.spaces.values() if space[1]]
            if emulated := self._machine.substrate.emulated:
                self._notes.append(
                    f"tiers are emulated (preset {emulated}): times hold the delays of slow pages"
                )
        else:
            fast = FastBudget.parse(self._machine.config.fast)
            rough = allocation_profile(step, self._layers())
            self._cuts = choose_cuts(step, fast.resolve(rough.peak_bytes))
            ranges = [(segment.heap_base, segment.words().heap_used)]
        try:
            self._sampling = self._sample()
        except SentinelError as error:
            self._notes.append(f"no pages were sampled: {error}")
        if self._sampling is not None:
            self._arm(self._sampling, ranges)
        if self._managed is None:
            tiers = self._machine.tiers or _NO_TIERS
            layout = provisional_layout(step, self._cuts)
            accesses = self._machine.substrate.accesses(layout, None, tiers)
            send_layout(self._link, layout, tiers, accesses)
        self._link.send({"type": "profile_ops"})

    def _arm(self, sampling: Sampling, ranges: list[tuple[int, int]]) -> None:
        self._log_lost = sampling.lost
        if self._managed is None:
            sampling.arm(ranges, residency=False)
        else:
            self._managed.mover.watch(
                sampling.sampler, lambda: sampling.arm(ranges, residency=False)
            )

    def _observe(self, step: Step) -> bool:
        """Find the step that was seen whole; then wait for what the framework says of it."""
        if self._access is None:
            self._access = self._find_access(step)
        if self._access is None:
            if not self._patient():
                self._reject("; ".join(["no step could be observed completely", *self._notes]))
                return True
            return False
        self._stop_sampling()
        told = self._ops is not None and self._ops.step == self._access[0].number
        if not told and self._patient():
            return False
        self._finish(*self._access)
        return True

    def _patient(self) -> bool:
        waited_s = time.monotonic() - self._access_since_s
        return self._seen <= ACCESS_STEPS_MIN or waited_s < ACCESS_WAIT_S

    def _keep(self, step: Step) -> None:
        self._candidates.append(step)
        self._candidate_records += len(step.records)
        while (
            len(self._candidates) > ACCESS_STEPS_MIN
            and self._candidate_records > CANDIDATE_RECORDS_MAX
        ):
            self._candidate_records -= len(self._candidates.popleft().records)

    def _find_access(self, step: Step) -> tuple[Step, Records] | None:
        """The step that was seen whole, and its page samples, if it has come."""
        if self._sampling is not None:
            return self._sampled(step, self._sampling) if self._is_cut(step) else None
        self._keep(step)
        if self._ops is None:
            return None
        for one in self._candidates:
            if one.number == self._ops.step and self._is_cut(one):
                return one, np.empty(0, SAMPLE_DTYPE)
        return None

    def _sampled(self, step: Step, sampling: Sampling) -> tuple[Step, Records] | None:
        epochs = boundary_records(step)["address"]
        if not np.all(epochs):
            return None
        sampling.collect()
        lost = sampling.lost - self._log_lost
        if lost:
            self._notes.append(f"{lost} page accesses were lost: raise log_records")
        samples = sampling.samples()
        inside = (samples["epoch"] >= epochs[0]) & (samples["epoch"] < step.end_epoch)
        return step, samples[inside]

    def _is_cut(self, step: Step) -> bool:
        assert self._cuts is not None
        return cut_count(step) == len(self._cuts)

    def _stop_sampling(self) -> None:
        if self._managed is not None:
            self._managed.mover.unwatch()
        if self._sampling is not None:
            self._sampling.disarm()
            self._sampling = None

    def _finish(self, step: Step, samples: Records) -> None:
        lost = self._link.segment.words().ring_lost - self._ring_lost
        if lost:
            self._reject(f"{lost} records were lost: the ring is too small for these steps")
            return
        assert self._cuts is not None
        before = list(self._alike)[-self._wanted :]
        if not np.array_equal(births(step), births(before[-1])):
            self._reject("the step that was observed allocated differently from those before")
            return
        ops = self._ops
        if ops is None or ops.step != step.number:
            self._notes.append("the framework did not tell what its operators access")
            ops = None
        segment = self._link.segment
        self._result = Trace(
            steps=(*before, step),
            samples=samples,
            op_accesses=np.empty(0, OP_ACCESS_DTYPE) if ops is None else ops.rows,
            cuts=self._cuts,
            layers=self._layers(),
            names={} if ops is None else ops.names,
            mappings=self._mappings(samples),
            tiers=self._machine.tiers,
            heap_base=segment.heap_base,
            arena=self._managed.spaces[Space.ARENA] if self._managed is not None else (0, 0),
            facts=self._facts(),
            faults=self._faults_of(before),
        )

    def _faults_of(self, steps: list[Step]) -> Records:
        if self._faults is None:
            return np.empty(0, FAULT_DTYPE)
        time = self._faults["time_ns"]
        inside = (time >= _begin_ns(steps[0])) & (time < steps[-1].end_ns)
        # five-level page tables have more, where nothing of the shim's lies
        faults: Records = self._faults[inside & (self._faults["address"] < ADDRESS_MAX)]
        return faults

    def _mappings(self, samples: Records) -> tuple[Mapped, ...]:
        """The mappings in which sampled pages lie, the shim's own by what they are."""
        try:
            mappings = read_mappings(self._link.pid)
        except OSError as error:
            self._notes.append(f"the process's mappings can't be read: {error.strerror}")
            return ()
        words = self._link.segment.words()
        heap = (self._link.segment.heap_base, self._link.segment.heap_bytes)
        spaces = {Space.HEAP: heap, Space.ARENA: (words.arena_base, words.arena_bytes)}
        starts = np.unique(samples["page"]) * np.uint64(4096)
        found = []
        for mapped in mappings:
            first, past = np.searchsorted(starts, np.array(mapped[:2], np.uint64))
            if first == past:
                continue
            name = mapped.name
            for space, (start, size) in spaces.items():
                if start <= mapped.start < start + size:
                    name = f"the shim's {space.name.lower()}"
            found.append(mapped._replace(name=name))
        return tuple(found)

    def _facts(self) -> dict[str, Any]:
        hello, system = self._link.hello, os.uname()
        return {
            "sentineld": __version__,
            "pid": self._link.pid,
            "torch": text_of(hello.get("torch", ""), 64),
            "threads": text_of(hello.get("threads", ""), 16),
            "managed": self._managed is not None,
            "policy": self._managed.plan.policy if self._managed is not None else "",
            "unmanaged_bytes": self._link.segment.words().unmanaged_bytes,
            "kernel": system.release,
            "machine": system.machine,
            "cpus": os.cpu_count() or 0,
            "recorded_unix_ns": time.time_ns(),
            # What to add to a record's time to have the time of day; other tracers use that.
            "unix_minus_monotonic_ns": time.time_ns() - time.monotonic_ns(),
            "faults_recorded": self._faults is not None,
            "notes": list(self._notes),
        }


def _begin_ns(step: Step) -> int:
    return int(step.records["time_ns"][0])
