# SPDX-License-Identifier: Apache-2.0
"""Recording a trace: some steps without sampling, then one step whose accesses are sampled.

A process without a plan gets the cuts that a plan would have, in a layout that plans no tensor;
afterwards the process is detached. A managed process is recorded under its live plan: it keeps its
cuts and its layout, and its pages continue to be moved.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from sentineld.base.errors import SentinelError
from sentineld.base.units import FastBudget
from sentineld.machine.machine import Machine
from sentineld.model.kernel_events import FAULT_DTYPE
from sentineld.model.plan import Space
from sentineld.model.records import (
    OP_ACCESS_DTYPE,
    SAMPLE_DTYPE,
    MemoryMapping,
    OpAccesses,
    Records,
)
from sentineld.model.tiers import Tiers
from sentineld.observe.shim_link import OP_ACCESSES_MAX, ShimLink
from sentineld.profile.step_check import ADDRESS_MAX, recorded_completely
from sentineld.profile.steps import Step, boundary_records, kept_records
from sentineld.profile.trace import Trace
from sentineld.session.intake.inbox import Inbox
from sentineld.session.intake.sampling import Sampling
from sentineld.session.live.managed import Managed
from sentineld.session.work.request import Request
from sentineld.session.work.step_sampler import (
    OperatorSteps,
    SampledStep,
    StepSampler,
)
from sentineld.session.work.trace_facts import facts_of, mappings_of

STEPS_WITHOUT_REPEAT_MAX = 40
"""A recording fails after the requested number of steps plus this number if too few steps in a row
have allocated identically."""
ACCESS_STEPS_MIN = 6
ACCESS_WAIT_S = 5.0
"""A recording gives up on the sampled step, or on its operators' accesses, only after more than
ACCESS_STEPS_MIN steps and at least ACCESS_WAIT_S seconds. Dozens of steps of a few milliseconds may
pass before the shim's message with the accesses is read."""
KEPT_RECORDS = 1 << 19
"""Limit on the ring records and live tensors in the steps that are kept until the framework has
reported the operators' accesses of a step; see kept_records(). ACCESS_STEPS_MIN steps are kept even
if they exceed this limit."""
RECORDED_RECORDS_MAX = 1 << 21
"""Limit on the records and live tensors in all recorded steps together; the records take at most
64 MiB. 100 steps with 10,000 births each have 2 million records of births and frees."""

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
        inbox: Inbox,
        steps: int,
    ) -> None:
        """sample: returns a Sampling that uses the kernel module; raises SentinelError if the
        module can't be used.

        inbox: has the names of the layers that are known so far, and receives the answer to the
            layout that adds the cuts.
        steps: number of steps to record before the sampled one.
        """
        super().__init__()
        self._link = link
        self._machine = machine
        self._managed = managed
        self._sample = sample
        self._inbox = inbox
        self._wanted = steps
        operators = OperatorSteps(link, KEPT_RECORDS, steps_min=ACCESS_STEPS_MIN)
        self._sampler = StepSampler(link, machine.substrate, inbox, max(steps, 2), operators)
        self._ring_lost = link.segment.words().ring_lost
        self._passed_steps = 0  # steps since sampling began or, before that, since recording began
        self._sampling: Sampling | None = None
        self._sampling_since_s: float | None = None
        self._sampled: SampledStep | None = None
        self._notes: list[str] = []
        self._faults: Records | None = None
        self._since_ns = 0  # beginning of the oldest step that is kept
        try:
            machine.probing.record(link.pid)
            self._faults = np.empty(0, FAULT_DTYPE)
        except SentinelError as error:
            self._notes.append(f"no page faults were recorded: {error}")

    def collect(self) -> None:
        """Drain the ring of page faults."""
        self._machine.probing.collect(self._link.pid, self._since_ns)

    def on_step(self, step: Step) -> bool:
        """Handle a complete recorded step; returns whether the recording is over."""
        self._passed_steps += 1
        if self._sampling_since_s is None:
            return self._gather(step)
        return self._observe(step, self._sampling_since_s)

    def on_op_accesses(self, accesses: OpAccesses) -> bool:
        """Handle the operators' accesses of a step."""
        self._sampler.operators.accesses = accesses
        return True

    def _disarm(self) -> None:
        self._sampler.cancel()

    def _release(self) -> None:
        self._machine.probing.stop_recording(self._link.pid)

    def _gather(self, step: Step) -> bool:
        """Handle a step that was recorded before sampling begins. Begin to sample as soon as enough
        steps in a row have allocated identically; returns whether the recording has failed."""
        if not recorded_completely(step):
            # The live plan is for varying sizes, and this step lacks some of the plan's
            # allocations. Cursors count the missing allocations, too, so the cursors of this step's
            # records have gaps. A trace must not have gaps, so the step is not kept. The steps of a
            # trace must be consecutive, so the steps gathered before this one are dropped, too.
            self._sampler.gathered.clear()
            return self._given_up()
        before = self._sampler.gathered
        if before and step.number != before[-1].number + 1:
            before.clear()  # the step between them was too long (profile/steps.py)
        enough = self._sampler.gather(step)
        self._since_ns = _begin_ns(self._sampler.gathered[0])
        if sum(map(kept_records, self._sampler.gathered)) > RECORDED_RECORDS_MAX:
            self._reject(
                f"process {self._link.pid}: {self._wanted} of its steps have more than"
                f" {RECORDED_RECORDS_MAX} records; record fewer steps"
            )
            return True
        if enough:
            self._begin_sampling()
            return False
        return self._given_up()

    def _given_up(self) -> bool:
        """If too many steps have passed without enough identical steps in a row, let the recording
        fail. Returns whether it has failed."""
        if self._passed_steps <= self._wanted + STEPS_WITHOUT_REPEAT_MAX:
            return False
        self._reject(
            f"process {self._link.pid} allocates differently from step to step; a trace needs"
            f" {self._wanted} identical steps in a row"
        )
        return True

    def _begin_sampling(self) -> None:
        """Begin to sample one of the next steps: its page accesses, if the kernel module is loaded,
        and its operators' accesses."""
        self._passed_steps, self._sampling_since_s = 0, time.monotonic()
        # Stop recording page faults: sampling itself causes page faults, because armed pages fault
        # on access.
        faults = self._machine.probing.stop_recording(self._link.pid)
        if self._faults is not None:
            self._faults = faults.rows
        if faults.lost:
            self._notes.append(f"{faults.lost} page faults were lost: their ring was full")
        try:
            self._sampling = self._sample()
        except SentinelError as error:
            self._notes.append(_not_sampled(error))
        if self._managed is not None:
            if emulated := self._machine.substrate.emulated:
                self._notes.append(
                    f"tiers are emulated (preset {emulated}): times include the delays of slow"
                    " pages"
                )
            self._sampler.begin_managed(self._sampling, self._managed)
        else:
            tiers, fast = self._machine.tiers or _NO_TIERS, self._machine.config.fast
            self._sampler.cut(FastBudget.parse(fast), self._inbox.layers)
            self._sampler.begin(self._sampling, tiers)

    def _observe(self, step: Step, since_s: float) -> bool:
        """Handle a step that has ended since sampling began. Returns whether the recording is over:
        the sampled step and its operators' accesses are known, or the recording no longer waits for
        them."""
        waited_s = time.monotonic() - since_s
        patient = self._passed_steps <= ACCESS_STEPS_MIN or waited_s < ACCESS_WAIT_S
        if self._sampled is None:
            self._sampled = self._sampler.on_step(step)
        if self._sampled is None:
            if not patient:
                if (problem := self._sampler.problem) is not None:
                    self._notes.append(_not_sampled(problem))
                self._reject("; ".join(["no step could be sampled completely", *self._notes]))
            return not patient
        answer = self._sampler.operators.accesses
        answered = answer is not None and answer.step == self._sampled.step.number
        if not answered and patient:
            return False
        self._complete(self._sampled, answer if answered else None)
        return True

    def _complete(self, sampled: SampledStep, ops: OpAccesses | None) -> None:
        lost = self._link.segment.words().ring_lost - self._ring_lost
        if lost:
            self._reject(f"{lost} records were lost: the ring is too small for these steps")
            return
        if ops is None:
            self._notes.append("the framework did not report its operators' accesses")
        elif ops.refused:
            self._notes.append(
                f"the framework reports {ops.refused} accesses of operators; they are missing,"
                f" because the limit is {OP_ACCESSES_MAX}"
            )
        samples = self._samples(sampled)
        before = list(self._sampler.gathered)[-self._wanted :]
        mappings = self._mappings(samples)
        managed = self._managed
        self._result = Trace(
            steps=(*before, sampled.step),
            samples=samples,
            op_accesses=np.empty(0, OP_ACCESS_DTYPE) if ops is None else ops.rows,
            cuts=self._sampler.cuts,
            layers=self._inbox.layers,
            names={} if ops is None else ops.names,
            mappings=mappings,
            tiers=self._machine.tiers,
            heap_base=self._link.segment.heap_base,
            arena=(0, 0) if managed is None else managed.spaces[Space.ARENA],
            facts={
                **facts_of(
                    self._link,
                    None if managed is None else managed.plan.policy,
                    self._faults is not None,
                    self._notes,
                ),
                "samples_incomplete": sampled.pages is not None and sampled.pages.incomplete,
            },
            faults=self._faults_of(before),
        )

    def _samples(self, sampled: SampledStep) -> Records:
        """The page accesses of the sampled step."""
        if sampled.pages is None:
            return np.empty(0, SAMPLE_DTYPE)
        if sampled.pages.problem is not None:
            self._notes.append(_not_sampled(sampled.pages.problem))
        if not sampled.pages.whole:
            self._notes.append("the heap grew in each step; accesses to its new pages are missing")
        if sampled.pages.lost:
            self._notes.append(f"{sampled.pages.lost} page accesses were lost: raise log_records")
        samples = sampled.pages.samples
        begin_epoch = boundary_records(sampled.step)["address"][0]
        inside = (samples["epoch"] >= begin_epoch) & (samples["epoch"] < sampled.step.end_epoch)
        found: Records = samples[inside]
        return found

    def _mappings(self, samples: Records) -> tuple[MemoryMapping, ...]:
        try:
            return mappings_of(self._link, samples)
        except OSError as error:
            self._notes.append(f"the process's mappings can't be read: {error.strerror}")
            return ()

    def _faults_of(self, steps: list[Step]) -> Records:
        if self._faults is None:
            return np.empty(0, FAULT_DTYPE)
        time_ns = self._faults["time_ns"]
        inside = (time_ns >= _begin_ns(steps[0])) & (time_ns < steps[-1].end_ns)
        # With five-level page tables, a fault's address may be above ADDRESS_MAX, but the addresses
        # that the shim uses are always below.
        faults: Records = self._faults[inside & (self._faults["address"] < ADDRESS_MAX)]
        return faults


def _not_sampled(problem: SentinelError) -> str:
    return f"no pages were sampled: {problem}"


def _begin_ns(step: Step) -> int:
    return int(step.records["time_ns"][0])
