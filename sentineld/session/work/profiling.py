# SPDX-License-Identifier: Apache-2.0
"""From the first recorded step of a session to a verified plan.

Warm-up, then steps until two allocate identically, then one step under page
observation (and torch.profiler) with the cuts that a plan will have (on emulated
tiers one more, which the delays are computed from), then the policy in a child
process. Called from the session's thread alone.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable

import numpy as np

from sentineld.base.errors import SentinelError
from sentineld.machine.machine import Machine
from sentineld.model import protocol
from sentineld.model.plan import Layout
from sentineld.model.profile import Profile
from sentineld.model.records import OP_ACCESS_DTYPE, SAMPLE_DTYPE, Records
from sentineld.model.tiers import Tiers
from sentineld.observe.shimlink import ShimLink
from sentineld.plan.cuts import choose_cuts, provisional_layout
from sentineld.profile.circle import allocation_profile
from sentineld.profile.join import build_profile
from sentineld.profile.steps import Step, births, cut_count, identical
from sentineld.profile.window import checked
from sentineld.session.intake.sampling import Sampling, Seen
from sentineld.session.lifecycle import State
from sentineld.session.live.sending import send_layout
from sentineld.session.live.shapes import Planned, Shape, Shapes
from sentineld.session.work.planning import Goal, PlanInput, planned_for

log = logging.getLogger(__name__)

WARM_UP_STEPS = 2
ACCESS_STEPS_MAX = 6
ACCESS_WAIT_S = 5.0
"""So many steps, and so long, to wait for one that was wholly sampled, before the allocation steps
begin again."""
OP_ACCESSES_WAIT_S = 60.0
SEEN_AGAIN_ASKS = 4
"""How often the framework is asked for a second step's accesses, if the one that it saw was of
another shape."""
KEPT_RECORDS = 500_000
"""Of the steps that are kept until the framework's answer says which one it saw: steps of a few
milliseconds pass by the hundred meanwhile."""
OTHER_SHAPE_STEPS = 8
"""Steps to wait for one of another shape than that of the plan that was left, before a single one
of that shape is taken for its return."""

EnterState = Callable[[State, str], None]


class Profiling:
    """One run through the states attached to planning."""

    def __init__(
        self,
        link: ShimLink,
        machine: Machine,
        tiers: Tiers,
        goal: Goal,
        enter: EnterState,
        shapes: Shapes,
        threads: Callable[[], int],
    ) -> None:
        """shapes: the plans that there are. threads: that compute in the process now."""
        self._link = link
        self._machine = machine
        self._tiers = tiers
        self._goal = goal
        self._enter = enter
        self._state = State.ATTACHED
        self._warm_up_left = WARM_UP_STEPS
        self._shapes = shapes
        self._threads = threads
        self._shape = Shape(0, "")
        self._left: Shape | None = None
        self._allocation_steps = 0
        self._known: Planned | None = None
        self._before: Step | None = None
        self._layout: Layout | None = None
        self._access: tuple[Step, Seen] | None = None
        self._access_steps = 0
        self._access_since_s = 0.0
        self._candidates: deque[Step] = deque()
        self._ops_asked_again = False
        self._deadline_s = 0.0
        self._op_accesses: tuple[int, Records] | None = None
        self._profile: Profile | None = None
        self._again: deque[Step] = deque()
        self._asks_left = SEEN_AGAIN_ASKS

    def skip_warm_up(self, left: Shape) -> None:
        """The process has run for long: begin with the allocation steps. left: of the plan that its
        steps no longer follow."""
        self._state = State.ALLOCATION
        self._left = left

    def on_step(
        self, step: Step, sampling: Callable[[], Sampling], layers: tuple[str, ...]
    ) -> None:
        """A whole step was recorded."""
        if self._state is State.ATTACHED:
            self._go(State.WARM_UP, "the first whole step was seen")
        if self._state is State.WARM_UP:
            self._warm_up_left -= 1
            if self._warm_up_left <= 0:
                self._go(State.ALLOCATION, f"{WARM_UP_STEPS} steps of warm-up are over")
        elif self._state is State.ALLOCATION:
            self._on_allocation_step(step, sampling, layers)
        elif self._state is State.ACCESS:
            self._on_access_step(step, sampling())
        elif self._state is State.PLANNING and self._profile is not None:
            _keep(self._again, step)

    def on_op_accesses(self, step_number: int, rows: Records) -> None:
        """The shim saw which tensors the operators of a step read and write."""
        self._op_accesses = (step_number, rows)

    def planned(self, layers: tuple[str, ...]) -> Planned | None:
        """Plan once everything is known; blocks while the child plans. Raises SentinelError."""
        if self._known is not None:
            return self._known
        if self._profile is None:
            self._profile = self._first_profile(layers)
            if self._profile is None:
                return None
            self._deadline_s = time.monotonic() + OP_ACCESSES_WAIT_S
            if self._machine.substrate.emulated:
                self._observe_again()
        profile = charged = self._profile
        if self._machine.substrate.emulated:
            again = self._second_profile(layers)
            if again is None and time.monotonic() < self._deadline_s:
                return None
            if again is None:
                log.warning("process %d: its accesses were seen but once", self._link.pid)
            charged = again or profile
        unmanaged_bytes = self._link.segment.words().unmanaged_bytes
        known = PlanInput(self._shape, profile, charged, self._tiers, unmanaged_bytes)
        return planned_for(self._goal, known, self._machine)

    def _observe_again(self) -> None:
        """Have a second step seen: a plan is not charged for what it was made of."""
        self._op_accesses = None
        self._asks_left -= 1
        if self._asks_left < 0:
            self._deadline_s = time.monotonic()
            return
        self._link.send({"type": "profile_ops"})

    def _second_profile(self, layers: tuple[str, ...]) -> Profile | None:
        """Of the step that was seen again, as soon as it is known."""
        assert self._access is not None
        first, _ = self._access
        if self._op_accesses is None:
            return None
        number, ops = self._op_accesses
        found = [one for one in self._again if one.number == number and identical(one, first)]
        if found and len(ops):
            return self._build(found[0], np.empty(0, SAMPLE_DTYPE), ops, layers)
        if self._again and self._again[-1].number >= number:
            self._observe_again()
        return None

    def _build(
        self, step: Step, samples: Records, ops: Records, layers: tuple[str, ...]
    ) -> Profile:
        assert self._layout is not None
        return build_profile(
            step,
            samples,
            ops,
            layers,
            cuts=self._layout.cuts,
            timed=self._before,
            heap_base=self._link.segment.heap_base,
        )

    def _first_profile(self, layers: tuple[str, ...]) -> Profile | None:
        """Of the access step, once its operators' accesses are here. Raises SentinelError."""
        if self._access is None:
            return None
        step, seen = self._access
        ops = np.empty(0, OP_ACCESS_DTYPE)
        if self._op_accesses is not None and self._op_accesses[0] == step.number:
            ops = self._op_accesses[1]
        elif time.monotonic() < self._deadline_s:
            return None
        if not len(seen.samples) and not len(ops):
            raise SentinelError(
                "module-not-loaded",
                "neither the module nor this torch's profiler tells accesses",
                "modprobe sentinel, or use a torch whose profiler has an event tree",
            )
        profile = self._build(step, seen.samples, ops, layers)
        if seen.areas is not None:
            profile = checked(profile, seen.backend.name, seen.backend.capabilities, seen.areas)
        return profile

    def _on_allocation_step(
        self, step: Step, sampling: Callable[[], Sampling], layers: tuple[str, ...]
    ) -> None:
        if self._known is not None:
            return
        before, self._before = self._before, step
        self._allocation_steps += 1
        self._shape = Shape.of(step, self._threads())
        repeated = before is not None and identical(before, step)
        known = self._shapes.find(self._shape)
        # Where shapes alternate, the one that the session just left is there all the time.
        patient = self._shape == self._left and self._allocation_steps <= OTHER_SHAPE_STEPS
        if known is not None and (repeated or not patient):
            self._known = known
        elif repeated:
            self._begin_access(step, sampling(), layers)

    def _begin_access(self, step: Step, sampling: Sampling, layers: tuple[str, ...]) -> None:
        """Two steps allocate identically: cut the long stretches and sample one step."""
        rough = allocation_profile(step, layers)
        cuts = choose_cuts(step, self._goal.fast.resolve(rough.peak_bytes))
        self._layout = provisional_layout(step, cuts)
        self._op_accesses = None
        self._access_steps, self._access_since_s = 0, time.monotonic()
        self._candidates.clear()
        self._ops_asked_again = False
        # Arming takes long, the messages none: the step that reads them is sampled whole.
        heap_used = self._link.segment.words().heap_used
        sampling.arm([(self._link.segment.heap_base, heap_used)], residency=False)
        accesses = self._machine.substrate.accesses(self._layout, None, self._tiers)
        send_layout(self._link, self._layout, self._tiers, accesses)
        self._link.send({"type": "profile_ops"})
        self._go(State.ACCESS, "two steps allocated identically")

    def _on_access_step(self, step: Step, sampling: Sampling) -> None:
        if self._is_whole(step, sampling):
            if not self._candidates:
                self._access_since_s = time.monotonic()
            _keep(self._candidates, step)
        access = self._find_access(step, sampling.exact)
        if access is not None:
            self._access = (access, sampling.finish())
            waited = self._ops_asked_again or self._op_accesses is not None
            self._deadline_s = time.monotonic() + (0.0 if waited else OP_ACCESSES_WAIT_S)
            reason = f"step {access.number} was observed by {sampling.backend.name}"
            self._go(State.PLANNING, reason)
            return
        self._access_steps += 1
        awaited = self._candidates and not sampling.exact and self._op_accesses is None
        wait_s = OP_ACCESSES_WAIT_S if awaited else ACCESS_WAIT_S
        late = time.monotonic() > self._access_since_s + wait_s
        if self._access_steps > ACCESS_STEPS_MAX and late:
            sampling.disarm()
            self._before = None
            self._go(State.ALLOCATION, "no step could be sampled whole")

    def _is_whole(self, step: Step, sampling: Sampling) -> bool:
        """Whether the step is one of the shape in question, and was sampled from its begin."""
        assert self._layout is not None
        boundaries = step.records[step.records["event"] == protocol.Event.BOUNDARY]
        sampled = not sampling.exact or bool(np.all(boundaries["address"] != 0))
        same = np.array_equal(births(step), self._layout.slots["bytes"])
        return sampled and same and cut_count(step) == len(self._layout.cuts)

    def _find_access(self, step: Step, exact: bool) -> Step | None:
        """The step to profile. exact: its pages were seen stretch by stretch, which is worth
        something without the framework's word; else the step that the framework saw is awaited,
        which need not be the first that has the cuts. Where it saw a step of another shape that
        came in between, it is asked again."""
        told = None if self._op_accesses is None else self._op_accesses[0]
        if told is None:
            late = exact or time.monotonic() > self._access_since_s + OP_ACCESSES_WAIT_S
            waiting = self._ops_asked_again or not self._candidates or not late
            return None if waiting else self._candidates[0]
        for candidate in self._candidates:
            if candidate.number == told:
                return candidate
        if told <= step.number:
            self._ops_asked_again, self._op_accesses = True, None
            self._access_since_s = time.monotonic()
            self._link.send({"type": "profile_ops"})
        return None

    def _go(self, state: State, reason: str) -> None:
        self._state = state
        self._enter(state, reason)


def _keep(steps: deque[Step], step: Step) -> None:
    steps.append(step)
    while sum(len(one.records) for one in steps) > KEPT_RECORDS and len(steps) > 1:
        steps.popleft()
