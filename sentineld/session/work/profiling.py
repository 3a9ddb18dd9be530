# SPDX-License-Identifier: Apache-2.0
"""Profiling: from a session's first recorded step to a verified plan.

After the warm-up, steps are recorded until it is clear which shape the plan must fit (choosing.py).
Then one step is sampled (step_sampler.py), with the cuts that a plan will have. On emulated tiers,
torch.profiler alone observes one more step, from which the emulated delays are computed. A child
process makes the plan.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

import numpy as np

from sentineld.base.errors import SentinelError
from sentineld.base.log_events import LogEvent, about
from sentineld.machine.machine import Machine
from sentineld.model.profile import Profile
from sentineld.model.protocol import Flag
from sentineld.model.records import OP_ACCESS_DTYPE, SAMPLE_DTYPE, OpAccesses, Records
from sentineld.model.tiers import Tiers
from sentineld.model.timing import timing_of
from sentineld.observe.shim_link import OP_ACCESSES_MAX, ShimLink
from sentineld.planner.turns import Turns
from sentineld.profile.attribution import build_profile
from sentineld.profile.fast_times import slow_shares, with_fast_times
from sentineld.profile.sizes import Sizes, with_sizes
from sentineld.profile.steps import Step, cut_count
from sentineld.profile.window_check import checked
from sentineld.session.intake.inbox import Inbox
from sentineld.session.intake.sampling import Observing
from sentineld.session.lifecycle import Lifecycle, State
from sentineld.session.live.shapes import Planned, Shape, Shapes
from sentineld.session.work.choosing import Choosing, Sample
from sentineld.session.work.planning import Goal, PlanInput, planned_for
from sentineld.session.work.rearm import rearm_period_us
from sentineld.session.work.step_sampler import (
    OP_ACCESSES_WAIT_S,
    OperatorSteps,
    SampledStep,
    StepSampler,
)

log = logging.getLogger(__name__)

WARM_UP_STEPS = 2
ACCESS_STEPS_MIN = 6
"""Minimum number of steps to wait for a completely sampled step; after a failed wait, the session
returns to state ALLOCATION."""
IDLE_S = 300.0
IDLE_STEPS = 10
"""While a step is sampled, the session returns to state ALLOCATION if no step has ended for IDLE_S
seconds and for the time of IDLE_STEPS steps, for example because the training is stopped. Otherwise
no other session could use DAMON, which watches only one process at a time. The limits are high,
because sampling and torch.profiler slow the step."""
SECOND_STEP_REQUESTS = 4
"""Maximum number of requests for the accesses of a second step (see _second_profile()). One request
may not be enough, because the framework may observe a step of another shape."""
KEPT_RECORDS = 500_000
"""Limit on the ring records and live tensors in the steps that are kept until the framework has
reported the operators' accesses of a step; see kept_records()."""
BUILDING = Turns(1)
"""One session at a time makes a profile from its samples, which takes several times their memory;
see sample_memory.py."""


@dataclass(frozen=True)
class Sought:
    """The plan that one pass of profiling is to find or make."""

    goal: Goal
    tiers: Tiers
    """The tiers, with the bandwidth that the plan should assume."""
    shapes: Shapes
    """The session's plans, by shape."""
    left: Shape | None = None
    """The shape whose plan the steps no longer follow; None: the process has just been attached."""


class Profiling:
    """One pass from state ATTACHED or ALLOCATION to a plan. The plan is either newly made, or one
    that the session already made for steps of this shape. All calls come from the session's
    thread."""

    def __init__(
        self,
        link: ShimLink,
        machine: Machine,
        inbox: Inbox,
        observing: Observing,
        lifecycle: Lifecycle,
        sought: Sought,
    ) -> None:
        """observing: samples the process by the best backend.

        If sought.left is None, the first state is ATTACHED. Otherwise it is ALLOCATION, because the
        process needs no second warm-up.
        """
        self._link = link
        self._machine = machine
        self._inbox = inbox
        self._observing = observing
        self._lifecycle = lifecycle
        self._sought = sought
        self.goal = sought.goal
        """The goal of the plan. The driver replaces it when it has reserved the session's share of
        the shared budget."""
        self._warm_up_left = WARM_UP_STEPS
        self._unmanaged_bytes = 0
        self._shape = Shape(0, "")
        self._found: Planned | None = None
        self._choosing = Choosing(sought.shapes, sought.left)
        self._sizes: Sizes | None = None
        """The allocation sizes that the plan must fit; None: the plan fits steps of one shape."""
        self._access_steps = 0
        self._step_ended_s = 0.0  # in state ACCESS: when a step ended last, or sampling began
        self._sampler = self._new_sampler()
        self._sampled: SampledStep | None = None
        self._profile: Profile | None = None
        self._second: OperatorSteps | None = None
        self._deadline_s = 0.0

    def _new_sampler(self) -> StepSampler:
        # The stretches' times are taken from the last step before sampling begins. On paged tiers,
        # a plan needs these times without the waits for pages, which NO_STALLS leaves out.
        self._link.set_flags(on=Flag.NO_STALLS)
        operators = OperatorSteps(self._link, KEPT_RECORDS)
        return StepSampler(self._link, self._machine.substrate, self._inbox, 2, operators)

    def note_unmanaged_bytes(self) -> None:
        """Record the current number of unmanaged bytes, which varies within a step. The more often
        this is called, the more likely the plan leaves room for the largest number."""
        now_bytes = self._link.segment.words().unmanaged_bytes
        self._unmanaged_bytes = max(self._unmanaged_bytes, now_bytes)

    def on_step(self, step: Step) -> None:
        """Handle a complete recorded step. Raises SentinelError or EOFError."""
        if self._lifecycle.state is State.ATTACHED:
            self._lifecycle.enter(State.WARM_UP, "the first whole step was recorded")
        state = self._lifecycle.state
        if state is State.WARM_UP:
            self._warm_up_left -= 1
            self._choosing.warm_up(step)
            if self._warm_up_left <= 0:
                reason = f"{WARM_UP_STEPS} warm-up steps are over"
                self._lifecycle.enter(State.ALLOCATION, reason)
        elif state is State.ALLOCATION:
            self._on_allocation_step(step)
        elif state is State.ACCESS:
            self._on_access_step(step)
        elif self._second is not None and self._sampled is not None:
            self._second.add(step, self._sampler.fits_sampled(step, self._sampled.step))

    def on_op_accesses(self, accesses: OpAccesses) -> None:
        """Handle the accesses of a step's operators."""
        (self._second or self._sampler.operators).accesses = accesses

    def planned(self) -> Planned | None:
        """The plan; None if more steps or accesses are needed. Blocks while the child process
        plans. Raises SentinelError or EOFError."""
        if self._found is not None:
            return self._found
        if self._profile is None:
            self._profile = self._first_profile()
            if self._profile is None:
                return None
        charged: Profile | None = self._profile
        if self._machine.substrate.emulated:
            charged = self._second_profile()
            if charged is None and time.monotonic() < self._deadline_s:
                return None
            if charged is None:
                log.warning(
                    "process %d: the framework observed only one step; emulated delays are"
                    " computed from the step that the plan was made from",
                    self._link.pid,
                )
        given = PlanInput(
            self._shape,
            self._profile,
            charged or self._profile,
            self._sought.tiers,
            self._unmanaged_bytes,
            self._sizes,
        )
        return planned_for(self.goal, given, self._machine, self._link)

    def _on_allocation_step(self, step: Step) -> None:
        if self._found is not None or cut_count(step):
            return  # ignore a step with cuts: it began before the process received `detach`
        repeated = self._sampler.gather(step)
        choice = self._choosing.add(step, self._inbox.threads, repeated)
        if isinstance(choice, Planned):
            self._found = choice
        elif choice is not None:
            self._begin_sampling(choice)

    def _begin_sampling(self, choice: Sample) -> None:
        self._shape, self._access_steps = choice.shape, 0
        if choice.similar is not None:
            self._sizes = choice.similar.sizes
            self._sampler.expect(choice.similar)
        self._sampler.cut(self.goal.fast, self._inbox.layers)
        period_us = rearm_period_us(self._sampler.gathered[-1], self._sampler.cuts)
        self._sampler.begin(self._observing.sampling(period_us), self._sought.tiers)
        self._step_ended_s = time.monotonic()
        self._lifecycle.enter(State.ACCESS, choice.reason)

    def _on_access_step(self, step: Step) -> None:
        self._step_ended_s = time.monotonic()
        operators = self._sampler.operators
        sampled = self._sampler.on_step(step)
        if sampled is not None:
            assert sampled.pages is not None
            self._sampled = sampled
            self._observing.end_sampling()
            if sampled.pages.lost:
                log.warning(
                    "process %d: the module lost %d records of accesses; the profile may be"
                    " incomplete (increase log_records in the configuration)",
                    self._link.pid,
                    sampled.pages.lost,
                    extra=about(LogEvent.RECORDS_LOST),
                )
            if sampled.pages.problem is not None:
                log.warning(
                    "process %d: page sampling was given up, so the plan is made from the accesses"
                    " that the framework reports: %s",
                    self._link.pid,
                    sampled.pages.problem.message,
                )
            waited = operators.requests > 1 or operators.accesses is not None
            self._deadline_s = time.monotonic() + (0.0 if waited else OP_ACCESSES_WAIT_S)
            backend = sampled.pages.backend.name
            reason = f"step {sampled.step.number} was observed by {backend}"
            self._lifecycle.enter(State.PLANNING, reason)
            return
        self._access_steps += 1
        if self._access_steps > ACCESS_STEPS_MIN and self._sampler.overdue():
            self._give_up_sampling("no step could be sampled completely")

    def check_idle(self) -> None:
        """In state ACCESS, give up the sampling if no step has ended for too long. Raises
        EOFError."""
        timed = self._sampler.gathered[-1]
        step_s = (timed.end_ns - int(timed.records["time_ns"][0])) / 1e9
        if time.monotonic() - self._step_ended_s > max(IDLE_S, IDLE_STEPS * step_s):
            self._give_up_sampling("no step ended while pages were sampled")

    def _give_up_sampling(self, reason: str) -> None:
        self._sampler.cancel()
        self._observing.end_sampling()
        # Steps must be gathered without the sampler's layout, because its cuts would be recorded
        # as boundaries.
        self._link.send({"type": "detach"})
        self._inbox.forget_layouts()
        self._sampler, self._sizes = self._new_sampler(), None
        self._choosing = Choosing(self._sought.shapes, self._sought.left)
        self._lifecycle.enter(State.ALLOCATION, reason)

    def _first_profile(self) -> Profile | None:
        """The profile of the sampled step; None until its operators' accesses have been received or
        are overdue. Raises SentinelError."""
        if self._sampled is None:
            return None
        step, pages = self._sampled
        assert pages is not None
        ops, answer = np.empty(0, OP_ACCESS_DTYPE), self._sampler.operators.accesses
        if answer is not None and answer.step == step.number:
            ops = answer.rows
        elif time.monotonic() < self._deadline_s:
            return None
        if not len(pages.samples) and not len(ops):
            if answer is not None and answer.refused:
                raise SentinelError(
                    "failed",
                    f"the framework reports {answer.refused} accesses of operators in a step; the"
                    f" limit is {OP_ACCESSES_MAX}",
                    "modprobe sentinel, whose samples have no such limit, or use shorter steps",
                )
            raise SentinelError(
                "module-not-loaded",
                "neither the module nor this torch's profiler reports accesses",
                "modprobe sentinel, or use a torch whose profiler has an event tree",
            )
        profile = self._build(step, pages.samples, ops, pages.incomplete)
        if pages.areas is not None:
            capabilities = pages.backend.capabilities
            profile = checked(profile, pages.backend.name, capabilities, pages.areas)
        profile = self._with_fast_times(profile, step, pages.samples)
        self._sampled = SampledStep(step, None)  # free the samples: planning may take long
        self._deadline_s = time.monotonic() + OP_ACCESSES_WAIT_S
        return self._at_full_size(profile)

    def _with_fast_times(self, profile: Profile, step: Step, samples: Records) -> Profile:
        """The profile with times from which the cost of accesses to slow nodes is subtracted.

        Times on emulated and on paged tiers do not contain this cost: emulated tiers delay no
        access before a plan is live, and on paged tiers Flag.NO_STALLS leaves out the waits for
        pages.
        """
        substrate = self._machine.substrate
        if substrate.emulated or substrate.paged:
            return profile
        nodes = [node for tier in self._sought.tiers.tiers[1:] for node in tier.nodes]
        on_slow = samples[np.isin(samples["node"], nodes)]
        if not len(on_slow):
            return profile
        slow = self._build(step, on_slow, np.empty(0, OP_ACCESS_DTYPE))
        return with_fast_times(profile, slow_shares(profile, slow), timing_of(self._sought.tiers))

    def _second_profile(self) -> Profile | None:
        """The profile of a second step, which only the framework observes; None as long as there is
        no such profile. Emulated delays are computed from this profile, because a plan must not be
        tested with the same recording from which it was made."""
        if self._second is None:
            self._second = OperatorSteps(self._link, KEPT_RECORDS)
            self._second.request()
            return None
        step, answer = self._second.find(), self._second.accesses
        if step is not None and answer is not None and len(answer.rows):
            return self._at_full_size(self._build(step, np.empty(0, SAMPLE_DTYPE), answer.rows))
        if step is not None or self._second.missed():
            if self._second.requests < SECOND_STEP_REQUESTS:
                self._second.request()
            else:
                self._deadline_s = time.monotonic()
        return None

    def _at_full_size(self, profile: Profile) -> Profile:
        return profile if self._sizes is None else with_sizes(profile, self._sizes)

    def _build(
        self, step: Step, samples: Records, ops: Records, incomplete: bool = False
    ) -> Profile:
        with BUILDING.turn(self._link.uid):
            return build_profile(
                step,
                samples,
                ops,
                self._inbox.layers,
                cuts=self._sampler.cuts,
                timed=self._sampler.gathered[-1],
                heap_base=self._link.segment.heap_base,
                incomplete=incomplete,
            )
