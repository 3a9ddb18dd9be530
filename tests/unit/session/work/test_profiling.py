# SPDX-License-Identifier: Apache-2.0
"""From recorded steps to a plan: a shape that has a plan is not profiled again."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from sentineld.base.errors import SentinelError
from sentineld.base.units import FastBudget
from sentineld.config import Config, TierOverrides
from sentineld.machine.choose import substrate_of
from sentineld.machine.machine import Machine
from sentineld.model.records import OP_ACCESS_DTYPE, SAMPLE_DTYPE, OpAccesses, Records
from sentineld.model.tiers import Tiers
from sentineld.observe import module
from sentineld.observe.backend import Ranges, Target
from sentineld.observe.module import MODULE, ModuleWatch
from sentineld.observe.shim_link import OP_ACCESSES_MAX, ShimLink
from sentineld.observe.shim_only import SHIM_ONLY, NoWatch
from sentineld.plan.layout_wire import WireLayout, unpack_layout
from sentineld.profile.steps import Step, StepCutter, births, identical, sequence_digest
from sentineld.session.intake import sampling
from sentineld.session.intake.inbox import Inbox
from sentineld.session.intake.sample_memory import SampleMemory
from sentineld.session.intake.sampling import Observing, Sampling
from sentineld.session.lifecycle import Lifecycle, State, Status
from sentineld.session.live.shapes import (
    Planned,
    Shape,
    Shapes,
)
from sentineld.session.work import profiling, step_sampler
from sentineld.session.work.choosing import OTHER_SHAPE_STEPS, SIZES_STEPS
from sentineld.session.work.planning import Goal
from sentineld.session.work.profiling import (
    ACCESS_STEPS_MIN,
    SECOND_STEP_REQUESTS,
    Profiling,
    Sought,
)
from tests.unit.links import Linked
from tests.unit.session.intake.test_sampling import Log
from tests.unit.trainer import MIB, PAGE
from tests.unit.workloads import Network, train

LARGE = Network(blocks=2, weights=1, activation_bytes=2 * MIB)
SMALL = Network(blocks=2, weights=1, activation_bytes=MIB)
CONFIG = Config(tiers=TierOverrides(emulated="cxl"))


def steps_of(network: Network, count: int, cuts: tuple[int, ...] = ()) -> list[Step]:
    """The given number of steady steps of a network's training."""
    return StepCutter().feed(train(network, count + 1, cuts).take_records())[1:]


class Recorded(Lifecycle):
    """The life cycle of an attached session; `entered` has the states that it enters."""

    def __init__(self) -> None:
        super().__init__(State.ATTACHED, "")
        self.entered: list[State] = []

    def enter(self, state: State, reason: str) -> None:
        super().enter(state, reason)
        self.entered.append(state)


class Window(NoWatch):
    """A watch that is `busy` from begin() to close()."""

    busy = False

    def begin(self, ranges: Ranges) -> None:
        self.busy = True

    def close(self) -> None:
        self.busy = False


class Logged(Sampling):
    """A sampling whose samples the test writes."""

    def __init__(self, link: ShimLink) -> None:
        self.window = Window(Target(link.pid, 1024))
        super().__init__(link, SHIM_ONLY, self.window)
        self.log = np.empty(0, SAMPLE_DTYPE)

    def samples(self) -> Records:
        return self.log


class Fixed(Observing):
    """Opens no backend, but uses the given sampling."""

    def __init__(self, link: ShimLink, sampling: Sampling) -> None:
        super().__init__(link, 1024)
        self._fixed = sampling

    def sampling(self, rearm_us: int) -> Sampling:
        self._sampling = self._fixed
        return self._fixed


class Profiled:
    """A run of profiling, and the process's end of the link."""

    def __init__(
        self,
        shapes: Shapes,
        threads: int = 1,
        config: Config = CONFIG,
        tiers: Tiers | None = None,
        sampling: Callable[[ShimLink], Sampling] = Logged,
    ) -> None:
        """tiers: None means the tiers of the configuration's substrate."""
        self.linked = Linked(heap_used=64 * MIB)
        self.shapes = shapes
        self.lifecycle = Recorded()
        substrate = substrate_of(config)
        tiers = tiers or substrate.tiers()
        machine = Machine(config, substrate, tiers, [])
        link = self.linked.link
        self.sampling = sampling(link)
        observing = Fixed(link, self.sampling)
        inbox = Inbox(link, observing)
        inbox.threads, inbox.layers = threads, ("",) * 32
        self._sought = Sought(Goal(FastBudget.parse("20%"), "fast-only"), tiers, shapes)
        self._begin = partial(Profiling, link, machine, inbox, observing, self.lifecycle)
        self.run = self._begin(self._sought)

    @property
    def states(self) -> list[State]:
        return self.lifecycle.entered

    def skip_warm_up(self, left: Shape) -> None:
        self.run = self._begin(replace(self._sought, left=left))
        self.lifecycle.status = Status(State.ALLOCATION, "")

    def answer(self, step: Step, ops: Records) -> None:
        self.run.on_op_accesses(OpAccesses(step.number, ops))

    def tell(self, *steps: Step) -> Planned | None:
        for step in steps:
            self.run.on_step(step)
        return self.run.planned()

    def asked(self) -> tuple[WireLayout | None, int]:
        """The layout sent since the last call, and the number of requests for accesses."""
        messages = self.linked.shim.receive()
        layout = None
        if any(message["type"] == "layout" for message in messages):
            (fd,) = self.linked.shim.take_fds(1)
            with os.fdopen(fd, "rb") as file:
                file.seek(0)
                layout = unpack_layout(file.read())
        return layout, sum(message["type"] == "profile_ops" for message in messages)

    def close(self) -> None:
        self.linked.close()


def whole_way(profiled: Profiled, network: Network) -> Planned:
    """Profile a network's training and make a plan for it. The answer to each request for the
    operators' accesses contains the accesses of the next step."""
    assert profiled.tell(*steps_of(network, 4)) is None
    layout, asked = profiled.asked()
    assert layout is not None
    assert asked == 1
    cuts = tuple(layout.cuts.tolist())
    step, again = steps_of(network, 2, cuts)
    profiled.answer(step, train(network, 2, cuts).take_ops())
    # On emulated tiers, the delays are computed from the accesses of a second step.
    assert profiled.tell(step) is None
    assert profiled.asked() == (None, 1)
    profiled.answer(again, train(network, 2, cuts).take_ops())
    planned = profiled.tell(again)
    assert planned is not None
    assert planned.charged is not planned.profile
    return planned


@pytest.fixture(scope="module")
def shapes() -> Shapes:
    """Shapes with a plan for the large network."""
    made = Shapes()
    profiled = Profiled(made)
    planned = whole_way(profiled, LARGE)
    assert profiled.states[-1] is State.PLANNING
    profiled.close()
    made.keep(planned)
    return made


@pytest.fixture
def again(shapes: Shapes) -> Iterator[Profiled]:
    profiled = Profiled(shapes)
    yield profiled
    profiled.close()


def test_a_digest_tells_steps_apart_as_identical_does() -> None:
    steps = [*steps_of(LARGE, 2), *steps_of(SMALL, 2), *steps_of(LARGE, 1, (3,))]
    for one in steps:
        for other in steps:
            assert (sequence_digest(one) == sequence_digest(other)) == identical(one, other)


def test_one_step_of_a_known_shape_is_enough(again: Profiled) -> None:
    again.skip_warm_up(Shape(1, "another"))
    (step,) = steps_of(LARGE, 1)
    planned = again.tell(step)
    assert planned is again.shapes.find(Shape.of(step, 1))
    assert again.asked() == (None, 0)
    assert again.states == []


def test_another_number_of_threads_is_another_shape(shapes: Shapes) -> None:
    profiled = Profiled(shapes, threads=2)
    profiled.skip_warm_up(Shape(1, "another"))
    assert profiled.tell(*steps_of(LARGE, 2)) is None
    assert profiled.states == [State.ACCESS]
    profiled.close()


def test_an_unknown_shape_is_profiled(again: Profiled) -> None:
    again.skip_warm_up(Shape(1, "another"))
    planned = whole_way(again, SMALL)
    assert planned.shape == Shape.of(steps_of(SMALL, 1)[0], 1)
    assert (
        planned.profile.peak_bytes
        < again.shapes.find(Shape.of(steps_of(LARGE, 1)[0], 1)).profile.peak_bytes
    )  # type: ignore[union-attr]


def test_a_plan_leaves_room_for_the_most_unmanaged_bytes_seen(again: Profiled) -> None:
    again.skip_warm_up(Shape(1, "another"))
    for small_bytes in (1000, 5000, 2000):
        again.linked.set(small_bytes=small_bytes)
        again.run.note_unmanaged_bytes()
    planned = whole_way(again, SMALL)
    assert planned.budget_bytes - planned.plan.budget_bytes == 5000


def test_the_shape_that_was_left_is_taken_when_it_stays(again: Profiled) -> None:
    one, two = steps_of(LARGE, 2)
    again.skip_warm_up(Shape.of(one, 1))
    assert again.tell(one) is None
    assert again.tell(two) is not None


def test_or_when_no_other_shape_comes_twice(again: Profiled) -> None:
    (left,) = steps_of(LARGE, 1)
    again.skip_warm_up(Shape.of(left, 1))
    others = [
        steps_of(Network(blocks=2, weights=1, activation_bytes=MIB + 4096 * n), 1)[0]
        for n in range(OTHER_SHAPE_STEPS // 2)
    ]
    for other in others:
        assert again.tell(left, other) is None
    assert again.tell(left) is not None
    assert again.states == []


def test_operators_are_requested_again_if_a_step_of_another_shape_was_observed(
    again: Profiled,
) -> None:
    again.skip_warm_up(Shape(1, "another"))
    again.tell(*steps_of(SMALL, 2))
    layout, _ = again.asked()
    assert layout is not None
    cuts = tuple(layout.cuts.tolist())
    assert len(cuts)
    trained = steps_of(SMALL, 4, cuts)
    (between,) = steps_of(LARGE, 1)
    ops = train(SMALL, 4, cuts).take_ops()
    # torch.profiler observed a step of the other shape (that of the network LARGE).
    again.answer(between, ops)
    assert again.tell(between, trained[1]) is None
    assert again.asked() == (None, 1)
    again.answer(trained[2], ops)
    assert again.tell(trained[2]) is None
    again.answer(trained[3], ops)
    planned = again.tell(trained[3])
    assert planned is not None
    assert len(planned.profile.accesses)
    assert np.array_equal(planned.plan.layout.slots["bytes"], layout.slots["bytes"])


def by_module(link: ShimLink) -> Sampling:
    """A sampling by the module. The caller has to replace module.PageSampler before."""
    return Sampling(link, MODULE, ModuleWatch(Target(link.pid, 1024)))


def profiled_by_module() -> Profiled:
    profiled = Profiled(Shapes(), sampling=by_module)
    assert [message["type"] for message in profiled.linked.shim.receive()] == ["epoch_fd"]
    os.close(*profiled.linked.shim.take_fds(1))
    return profiled


def test_samples_are_freed_before_a_plan_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    log, memory = Log(), SampleMemory(10 * SAMPLE_DTYPE.itemsize, 1 << 30)
    monkeypatch.setattr(module, "PageSampler", lambda: log)
    monkeypatch.setattr(sampling, "MEMORY", memory)
    profiled = profiled_by_module()
    log.records = [(page, 1, 0, 0, 0) for page in range(5)]
    planned = whole_way(profiled, SMALL)
    assert planned.profile.source == "module+shim"
    others = np.zeros(10, SAMPLE_DTYPE)
    memory.keep(os.getuid(), others)
    assert memory.fits(os.getuid())
    profiled.close()


def test_with_too_many_samples_the_plan_is_made_from_the_framework_s_accesses(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log = Log()
    monkeypatch.setattr(module, "PageSampler", lambda: log)
    monkeypatch.setattr(sampling, "MEMORY", SampleMemory(10 * SAMPLE_DTYPE.itemsize, 1 << 30))
    profiled = profiled_by_module()
    log.records = [(page, 1, 0, 0, 0) for page in range(11)]
    planned = whole_way(profiled, SMALL)
    assert planned.profile.source == "shim"
    assert len(planned.profile.accesses)
    assert "page sampling was given up" in caplog.text
    assert "was observed by shim" in profiled.lifecycle.status.reason
    profiled.close()


def planning(profiled: Profiled, network: Network) -> tuple[list[Step], Records]:
    """Profile up to the request for a second access step. Returns the steps that follow the first
    access step, and the operators' accesses."""
    profiled.tell(*steps_of(network, 4))
    layout, _ = profiled.asked()
    assert layout is not None
    cuts = tuple(layout.cuts.tolist())
    ops = train(network, 2, cuts).take_ops()
    first, *following = steps_of(network, 40, cuts)
    profiled.answer(first, ops)
    assert profiled.tell(first) is None
    assert profiled.asked() == (None, 1)
    return following, ops


def test_the_observed_step_need_not_be_the_first_with_the_cuts() -> None:
    profiled = Profiled(Shapes())
    profiled.tell(*steps_of(SMALL, 4))
    layout, _ = profiled.asked()
    assert layout is not None
    cuts = tuple(layout.cuts.tolist())
    following = steps_of(SMALL, 30, cuts)
    # The process receives the request between the first and the second of these steps, so the
    # second one is observed. The answer comes after the last step.
    assert profiled.tell(*following) is None
    assert profiled.states[-1] is State.ACCESS
    ops = train(SMALL, 3, cuts).take_ops()
    profiled.answer(following[1], ops)
    assert profiled.tell(*steps_of(SMALL, 1, cuts)) is None
    assert profiled.states[-1] is State.PLANNING
    assert profiled.asked() == (None, 1)
    profiled.close()


def test_steps_are_gathered_again_without_the_cuts_of_a_failed_sampling(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(step_sampler, "WHOLE_STEP_WAIT_S", 0.0)
    profiled = Profiled(Shapes())
    profiled.tell(*steps_of(SMALL, 4))
    assert profiled.states[-1] is State.ACCESS
    assert profiled.sampling.window.busy
    # These steps do not have the cuts of the layout that was sent.
    profiled.tell(*steps_of(SMALL, ACCESS_STEPS_MIN + 1))
    assert profiled.states[-1] is State.ALLOCATION
    assert not profiled.sampling.window.busy
    messages = [message["type"] for message in profiled.linked.shim.receive()]
    assert messages == ["layout", "profile_ops", "detach"]
    os.close(*profiled.linked.shim.take_fds(1))
    # The first steps after the `detach` message can still have the cuts.
    profiled.tell(*steps_of(SMALL, 3, (3,)))
    assert profiled.asked() == (None, 0)
    profiled.tell(*steps_of(SMALL, 2))
    assert profiled.states[-1] is State.ACCESS
    assert profiled.sampling.window.busy
    profiled.close()


def test_sampling_is_given_up_if_no_step_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    profiled = Profiled(Shapes())
    profiled.tell(*steps_of(SMALL, 4))
    profiled.run.check_idle()
    monkeypatch.setattr(profiling, "IDLE_S", 0.0)
    monkeypatch.setattr(profiling, "IDLE_STEPS", 1e9)
    profiled.run.check_idle()
    assert profiled.states[-1] is State.ACCESS
    monkeypatch.setattr(profiling, "IDLE_STEPS", 0)
    profiled.run.check_idle()
    assert profiled.states[-1] is State.ALLOCATION
    assert not profiled.sampling.window.busy
    profiled.asked()
    profiled.tell(*steps_of(SMALL, 2))
    assert profiled.states[-1] is State.ACCESS
    profiled.close()


def test_the_watch_ends_once_a_step_was_sampled() -> None:
    profiled = Profiled(Shapes())
    planning(profiled, SMALL)
    assert not profiled.sampling.window.busy
    profiled.close()


def test_many_steps_may_pass_before_the_second_answer() -> None:
    profiled = Profiled(Shapes())
    following, ops = planning(profiled, SMALL)
    assert profiled.tell(*following) is None
    profiled.answer(following[1], ops)
    planned = profiled.tell()
    assert planned is not None
    assert planned.charged is not planned.profile
    assert profiled.asked() == (None, 0)
    profiled.close()


def test_a_second_step_of_another_shape_is_requested_again_a_limited_number_of_times() -> None:
    profiled = Profiled(Shapes())
    following, ops = planning(profiled, SMALL)
    (other,) = steps_of(LARGE, 1)
    for asked in range(SECOND_STEP_REQUESTS - 1):
        profiled.answer(other, ops)
        assert profiled.tell(other, following[asked]) is None
        assert profiled.asked() == (None, 1)
    profiled.answer(other, ops)
    planned = profiled.tell(other) or profiled.tell()
    assert planned is not None
    assert planned.charged is planned.profile
    assert profiled.asked() == (None, 0)
    profiled.close()


def test_a_step_with_too_many_accesses_cannot_be_planned_without_page_samples() -> None:
    profiled = Profiled(Shapes())
    profiled.tell(*steps_of(SMALL, 4))
    layout, _ = profiled.asked()
    assert layout is not None
    (step,) = steps_of(SMALL, 1, tuple(layout.cuts.tolist()))
    no_rows = np.empty(0, OP_ACCESS_DTYPE)
    profiled.run.on_op_accesses(OpAccesses(step.number, no_rows, refused=OP_ACCESSES_MAX + 1))
    with pytest.raises(SentinelError, match=f"the limit is {OP_ACCESSES_MAX}") as caught:
        profiled.tell(step)
    assert "modprobe sentinel" in caught.value.hint
    profiled.close()


def varying(count: int, pages: int = 16, cuts: tuple[int, ...] = ()) -> list[Step]:
    """`count` steps that differ only in the sizes of activations, by less than `pages` pages."""
    return [
        steps_of(replace(SMALL, activation_bytes=MIB + PAGE * (7 * n % pages)), 1, cuts)[0]
        for n in range(count)
    ]


def widen(profiled: Profiled) -> Planned:
    """Continue from the request for accesses; returns the plan for varying sizes."""
    layout, asked = profiled.asked()
    assert layout is not None
    assert asked == 1
    assert layout.slots["slack"].any()
    cuts = tuple(layout.cuts.tolist())
    # The first step with the cuts is not sampled: the step before it ran without the layout, so the
    # cursors of tensors that were born in that step can be wrong (see step_sampler.py).
    first, step, again = varying(3, cuts=cuts)
    assert not identical(step, again)
    profiled.answer(first, train(SMALL, 2, cuts).take_ops())
    assert profiled.tell(first) is None
    assert profiled.asked() == (None, 1)
    profiled.answer(step, train(SMALL, 2, cuts).take_ops())
    assert profiled.tell(step) is None
    profiled.asked()
    profiled.answer(again, train(SMALL, 2, cuts).take_ops())
    planned = profiled.tell(again)
    assert planned is not None
    return planned


@pytest.fixture(scope="module")
def wide() -> Planned:
    profiled = Profiled(Shapes())
    steps = varying(SIZES_STEPS)  # the warm-up's steps count towards SIZES_STEPS, too
    assert profiled.tell(*steps[:-1]) is None
    assert profiled.states[-1] is State.ALLOCATION
    assert profiled.tell(steps[-1]) is None
    assert profiled.states[-1] is State.ACCESS
    planned = widen(profiled)
    profiled.close()
    return planned


def test_steps_of_varying_sizes_get_a_plan_for_the_largest(wide: Planned) -> None:
    assert wide.shape.sizes_vary
    largest = steps_of(replace(SMALL, activation_bytes=MIB + 15 * PAGE), 1)[0]
    slots = wide.plan.layout.slots
    assert slots["bytes"].tolist() == births(largest).tolist()
    assert np.array_equal(slots["slack"] > 0, births(largest) != births(steps_of(SMALL, 1)[0]))
    for profile in (wide.profile, wide.charged):
        slotted = profile.tensors["slot"] >= 0
        assert profile.tensors["bytes"][slotted].tolist() == births(largest).tolist()
    assert wide.budget_bytes == FastBudget.parse("20%").resolve(wide.profile.peak_bytes)
    assert wide.spare is None
    assert any("allocations vary" in note for note in wide.plan.notes)


def test_one_step_that_fits_is_enough_in_a_steady_session(wide: Planned) -> None:
    shapes = Shapes()
    shapes.keep(wide)
    profiled = Profiled(shapes)
    profiled.skip_warm_up(Shape(1, "another"))
    assert profiled.tell(varying(2)[1]) is wide
    profiled.close()
