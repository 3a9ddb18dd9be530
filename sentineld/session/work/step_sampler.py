# SPDX-License-Identifier: Apache-2.0
"""Sampling one step of a process: its page accesses, and its operators' accesses.

First, steps are recorded without sampling until enough of them in a row allocate identically, or
differ only in the sizes of allocations. Then the process gets the cuts that a plan would have, its
pages are armed, and its shim is told to run torch.profiler. The sampled step is a later step that
ran with the cuts, the armed pages and, normally, torch.profiler.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sentineld.base.errors import SentinelError
from sentineld.base.units import FastBudget
from sentineld.machine.substrate import Substrate
from sentineld.model.protocol import Flag
from sentineld.model.records import OpAccesses
from sentineld.model.tiers import Tiers
from sentineld.observe.shim_link import ShimLink
from sentineld.plan.cuts import before_optional, choose_cuts, provisional_layout
from sentineld.plan.layout_wire import Tables
from sentineld.plan.slack import with_slack
from sentineld.profile.lifetimes import allocation_profile
from sentineld.profile.sizes import Similar, Sizes
from sentineld.profile.steps import (
    Step,
    births,
    boundary_records,
    cut_count,
    identical,
    kept_records,
    structure_digest,
)
from sentineld.session.intake.claims import heap_range
from sentineld.session.intake.inbox import Inbox
from sentineld.session.intake.sampling import SampledPages, Sampling
from sentineld.session.live.managed import Managed
from sentineld.session.live.sending import new_layout_id, send_layout

WHOLE_STEP_WAIT_S = 5.0
"""Time to wait for a step that was observed from its beginning to its end."""
REQUESTS_MAX = 24
"""Maximum number of requests for a step's accesses. Each request costs time, and the step that the
framework then observes may have another shape."""
OP_ACCESSES_WAIT_S = 60.0
"""Time to wait for the framework's answer to a request: the operators' accesses of one step."""
HEAP_GROWTHS_MAX = 3
"""If the used part of the heap has grown since it was armed, it is armed again, at most this many
times. If a training keeps some new tensors of each step, the heap grows in every step. In this
case, a step is taken although the heap grew, and its samples count as incomplete."""


class SampledStep(NamedTuple):
    """A step and the page accesses that were sampled in it."""

    step: Step
    pages: SampledPages | None  # None: no pages were sampled


class OperatorSteps:
    """Requests the operators' accesses of a step from the framework, and keeps steps until the
    framework's answer names the step that torch.profiler observed.

    The answer comes long after that step: hundreds of short steps can pass before it arrives.
    """

    def __init__(self, link: ShimLink, records_max: int, steps_min: int = 1) -> None:
        """records_max: maximum total number of ring records and live tensors in the kept steps;
        steps_min: number of steps to keep even if their total exceeds records_max."""
        self.accesses: OpAccesses | None = None
        """The answer to the last request."""
        self.requests = 0
        self._link = link
        self._records_max, self._steps_min = records_max, steps_min
        self._kept: deque[Step] = deque()
        self._kept_records = 0
        self._newest = -1

    def request(self) -> None:
        """Have torch.profiler observe the next step that begins. Raises EOFError."""
        self.accesses = None
        self.requests += 1
        self._link.send({"type": "profile_ops"})

    def add(self, step: Step, fits: bool) -> None:
        """Record that a step has ended. fits: whether to keep the step for find()."""
        self._newest = step.number
        if not fits:
            return
        self._kept.append(step)
        self._kept_records += kept_records(step)
        while self._kept_records > self._records_max and len(self._kept) > self._steps_min:
            self._kept_records -= kept_records(self._kept.popleft())

    def forget(self) -> None:
        """Drop the kept steps."""
        self._kept.clear()
        self._kept_records = 0

    @property
    def first(self) -> Step | None:
        """The oldest step that is kept."""
        return self._kept[0] if self._kept else None

    def find(self) -> Step | None:
        """The kept step that torch.profiler observed; None if it is not known yet or not kept."""
        if self.accesses is None:
            return None
        number = self.accesses.step
        return next((step for step in self._kept if step.number == number), None)

    def missed(self) -> bool:
        """Whether the observed step has ended but was not kept. A new request is then needed."""
        passed = self.accesses is not None and self.accesses.step <= self._newest
        return passed and self.find() is None


class StepSampler:
    """Samples one step of one process. All calls come from the session's thread."""

    def __init__(
        self,
        link: ShimLink,
        substrate: Substrate,
        inbox: Inbox,
        steps: int,
        operators: OperatorSteps,
    ) -> None:
        """inbox: receives the process's answer to the provisional layout. steps: number of
        identical steps in a row to gather before a step is sampled."""
        self.gathered: deque[Step] = deque(maxlen=steps)
        self.operators = operators
        self.cuts: npt.NDArray[np.uint32] = np.empty(0, np.uint32)
        """Allocation cursors of the cuts that the sampled step has."""
        self._sizes: Sizes | None = None
        """If sizes vary: the sizes that the provisional layout accepts."""
        self._structure = ""
        """If sizes vary: structure_digest() of the sampled step."""
        self._steps_with_cuts = 0
        self._link = link
        self._substrate = substrate
        self._inbox = inbox
        self._sampling: Sampling | None = None
        self._managed: Managed | None = None
        self._armed_bytes: int | None = None  # bytes armed by _arm_heap(); None: it was not called
        self._armed_step = 0  # number of the step in which the pages were armed
        self._gaps = 0  # mover.gaps when the pages were armed
        self._growths = 0  # how often the heap has outgrown the armed pages
        self._waiting_since_s = 0.0

    def gather(self, step: Step) -> bool:
        """Handle a step that was recorded without sampling; returns whether enough such steps in a
        row allocate identically."""
        if self.gathered and not identical(self.gathered[-1], step):
            self.gathered.clear()
        self.gathered.append(step)
        return len(self.gathered) == self.gathered.maxlen

    def expect(self, similar: Similar) -> None:
        """Choose the kind of step to sample: a step that differs from the largest step of `similar`
        at most in the sizes of allocations. So it has all allocations that any step of `similar`
        has. The cuts are chosen for the largest step."""
        self.gathered.clear()
        self.gathered.append(similar.largest)
        self._sizes, self._structure = similar.sizes, structure_digest(similar.largest)

    def fits(self, step: Step) -> bool:
        """Whether the step allocates like the gathered steps. Cuts are ignored."""
        if self._sizes is not None:
            return structure_digest(step) == self._structure
        return np.array_equal(births(step), births(self.gathered[-1]))

    def fits_sampled(self, step: Step, sampled: Step) -> bool:
        """Whether the step allocates like the sampled step and has the same boundaries."""
        if self._sizes is not None:
            return self.fits(step) and cut_count(step) == len(self.cuts)
        return identical(step, sampled)

    def cut(self, fast: FastBudget, layers: tuple[str, ...]) -> None:
        """Choose the cuts of the step to be sampled, for this budget. Call this before begin()."""
        step = self.gathered[-1]
        peak_bytes = allocation_profile(step, layers).peak_bytes
        self.cuts = choose_cuts(step, fast.resolve(peak_bytes))
        if self._sizes is not None:
            self.cuts = before_optional(self.cuts, self._sizes.optional)

    def begin(self, sampling: Sampling | None, tiers: Tiers) -> None:
        """Begin to sample a process that has no live plan. Raises SentinelError or EOFError; if the
        process refuses the provisional layout, Inbox.take() raises SentinelError later."""
        step = self.gathered[-1]
        layout = provisional_layout(step, self.cuts)
        if self._sizes is not None:
            layout = with_slack(layout, self._sizes)
        if sampling is not None:
            self._arm_heap(sampling)
        self._link.set_flags(off=Flag.NO_STALLS)
        # The pages are armed before the layout is sent. Arming takes a long time, and a step that
        # begins with the new cuts must be sampled from its beginning.
        tables = Tables(self._substrate.accesses(layout, None, tiers))
        layout_id = new_layout_id()
        send_layout(self._link, layout, tiers, layout_id, tables)
        self._inbox.expect_cuts(layout_id)
        self._begin(sampling)

    def begin_managed(self, sampling: Sampling | None, managed: Managed) -> None:
        """Begin to sample a process under its live plan, which has cuts. Raises EOFError."""
        self._managed, self.cuts = managed, managed.plan.layout.cuts
        ranges = [space for space in managed.spaces.values() if space[1]]
        self._gaps = managed.mover.gaps
        if sampling is not None:
            managed.mover.watch(sampling.sampler, lambda: sampling.arm(ranges, residency=False))
        self._begin(sampling)

    def _arm_heap(self, sampling: Sampling) -> None:
        segment = self._link.segment
        heap = heap_range(segment, segment.words())
        sampling.arm([heap], residency=False)
        self._armed_bytes, self._armed_step = heap[1], segment.words().step

    def _begin(self, sampling: Sampling | None) -> None:
        self._sampling = sampling
        self._waiting_since_s = time.monotonic()
        self.operators.request()

    def on_step(self, step: Step) -> SampledStep | None:
        """Handle a step that has ended since begin(); returns the sampled step, or None if it has
        not been found yet.

        Sampling ends when the step is found. With some backends, ending the sampling takes some
        seconds.
        """
        if self._sampling is not None and self._exact:
            self._sampling.collect()
        grew = self._heap_grew()
        if grew and self._growths < HEAP_GROWTHS_MAX:
            self._arm_more()
            grew = False
        whole = self._is_whole(step)
        if whole and self.operators.first is None:
            self._waiting_since_s = time.monotonic()
        self.operators.add(step, whole)
        found = self._find()
        if found is None:
            return None
        pages = self._finish()
        missed = grew or (self._managed is not None and self._managed.mover.gaps != self._gaps)
        return SampledStep(found, replace(pages, whole=False) if pages and missed else pages)

    @property
    def problem(self) -> SentinelError | None:
        """Why page sampling was given up (there were too many samples); None: it was not given up.
        If it was given up, only the step that the framework observed can be the sampled step."""
        return None if self._sampling is None else self._sampling.problem

    @property
    def _exact(self) -> bool:
        """Whether a backend with epochs samples pages."""
        return self._sampling is not None and self._sampling.exact and self.problem is None

    def _heap_grew(self) -> bool:
        """Whether the process may have used parts of the heap that are not armed."""
        if not self._exact or self._armed_bytes is None:
            return False
        return self._link.segment.words().heap_used > self._armed_bytes

    def _arm_more(self) -> None:
        """Arm all of the heap that is used now, and sample another step."""
        assert self._sampling is not None
        self._growths += 1
        self._arm_heap(self._sampling)
        self.operators.forget()
        self._waiting_since_s = time.monotonic()

    def _is_whole(self, step: Step) -> bool:
        """Whether the step allocates like the gathered steps, has the cuts, and was sampled from
        its beginning to its end."""
        sampled = not self._exact or (
            step.number > self._armed_step and bool(np.all(boundary_records(step)["address"] != 0))
        )
        if cut_count(step) != len(self.cuts):
            return False
        self._steps_with_cuts += 1
        # A profile identifies tensors that were born in the previous step by their cursors
        # (profile/lifetimes.py). If sizes vary, cursors count missing allocations only in steps
        # that ran with the layout. The step before the first step with the cuts ran without the
        # layout, so the first step with the cuts cannot be used.
        sure = self._sizes is None or self._steps_with_cuts > 1
        return sampled and sure and self.fits(step)

    def _find(self) -> Step | None:
        """The sampled step: the step that the framework observed, which need not be the first step
        with the cuts. If the framework observed a step that was not kept, for example a step of
        another shape, another request is sent.

        If pages are sampled and the framework has not answered the first request, the first whole
        step is used. With a backend that has epochs (_exact) it is used immediately; with other
        backends, only after a long wait.
        """
        operators = self.operators
        if operators.accesses is not None:
            if operators.missed():
                self._waiting_since_s = time.monotonic()
                operators.request()
            return operators.find()
        if self._sampling is None or self.problem is not None or operators.requests > 1:
            return None
        return operators.first if self._exact or self._waited_s() > OP_ACCESSES_WAIT_S else None

    def overdue(self) -> bool:
        """Whether the search for a step that was sampled completely has taken too long. If it has,
        and page sampling was given up, raises `problem` (SentinelError) instead: another search
        would end in the same way."""
        operators = self.operators
        unanswered = operators.first is not None and operators.accesses is None
        wait_s = OP_ACCESSES_WAIT_S if unanswered and not self._exact else WHOLE_STEP_WAIT_S
        late = self._waited_s() > wait_s or operators.requests > REQUESTS_MAX
        if late and self.problem is not None:
            raise self.problem.fresh()
        return late

    def _waited_s(self) -> float:
        return time.monotonic() - self._waiting_since_s

    def _finish(self) -> SampledPages | None:
        sampling, self._sampling = self._sampling, None
        if sampling is None:
            return None
        if self._managed is not None:
            return self._managed.mover.unwatch(sampling.finish)
        return sampling.finish()

    def cancel(self) -> None:
        """Stop sampling, unless sampling has already ended."""
        sampling, self._sampling = self._sampling, None
        if sampling is None:
            return
        if self._managed is not None:
            self._managed.mover.unwatch(sampling.disarm)
        else:
            sampling.disarm()
