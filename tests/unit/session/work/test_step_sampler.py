# SPDX-License-Identifier: Apache-2.0
"""Steps are kept until the framework's answer names the step that the framework observed. If the
heap has outgrown the armed pages, another step is sampled. If there are too many page samples, the
step that the framework observed is taken without them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from sentineld.base.errors import SentinelError
from sentineld.base.units import FastBudget
from sentineld.config import TierOverrides
from sentineld.machine.emulated import EmulatedSubstrate
from sentineld.machine.substrate import Substrate
from sentineld.model.plan import Space
from sentineld.model.records import OP_ACCESS_DTYPE, SAMPLE_DTYPE, OpAccesses
from sentineld.observe import module
from sentineld.observe.backend import Target
from sentineld.observe.module import MODULE
from sentineld.observe.shim_link import ShimLink
from sentineld.observe.shim_only import SHIM_ONLY
from sentineld.profile.steps import Step, StepCutter
from sentineld.session.intake import sampling
from sentineld.session.intake.inbox import Inbox
from sentineld.session.intake.sample_memory import SampleMemory
from sentineld.session.intake.sampling import Observing, Sampling
from sentineld.session.live.managed import Managed
from sentineld.session.work import step_sampler
from sentineld.session.work.step_sampler import HEAP_GROWTHS_MAX, OperatorSteps, StepSampler
from tests.unit.links import Linked
from tests.unit.session.intake.test_sampling import Log
from tests.unit.trainer import MIB
from tests.unit.workloads import Network, train

LARGE = Network(blocks=1, weights=1, activation_bytes=2 * MIB)
SMALL = Network(blocks=1, weights=1, activation_bytes=MIB)


def steps_of(network: Network, count: int, cuts: tuple[int, ...] = ()) -> list[Step]:
    return StepCutter().feed(train(network, count + 1, cuts).take_records())[1:]


def answer(step: Step) -> OpAccesses:
    return OpAccesses(step.number, np.zeros(1, OP_ACCESS_DTYPE))


@pytest.fixture
def linked() -> Iterator[Linked]:
    made = Linked(heap_used=64 * MIB)
    yield made
    made.close()


def sampler_of(link: ShimLink, substrate: Substrate) -> StepSampler:
    inbox = Inbox(link, Observing(link, 1024))
    return StepSampler(link, substrate, inbox, 2, OperatorSteps(link, 1 << 20))


def requests(linked: Linked) -> int:
    return sum(message["type"] == "profile_ops" for message in linked.shim.receive())


def test_the_observed_step_is_found_among_those_kept(linked: Linked) -> None:
    operators = OperatorSteps(linked.link, 1 << 20)
    operators.request()
    assert requests(linked) == 1
    steps = steps_of(LARGE, 3)
    for step in steps:
        operators.add(step, True)
    assert operators.find() is None
    assert not operators.missed()
    operators.accesses = answer(steps[1])
    assert operators.find() is steps[1]


def test_an_observed_step_that_does_not_fit_is_missed_once_it_has_passed(linked: Linked) -> None:
    operators = OperatorSteps(linked.link, 1 << 20)
    first, second = steps_of(LARGE, 2)
    operators.accesses = answer(second)
    operators.add(first, True)
    assert not operators.missed()
    operators.add(second, False)
    assert operators.missed()


@pytest.mark.parametrize("steps_min", [1, 3])
def test_the_number_of_kept_steps_is_bounded(linked: Linked, steps_min: int) -> None:
    operators = OperatorSteps(linked.link, 1, steps_min)
    steps = steps_of(LARGE, 5)
    for step in steps:
        operators.add(step, True)
    assert operators.first is steps[-steps_min]


def test_without_page_samples_only_the_observed_step_will_do(linked: Linked) -> None:
    substrate = EmulatedSubstrate(TierOverrides(emulated="cxl"))
    sampler = sampler_of(linked.link, substrate)
    before = (*steps_of(SMALL, 1), *steps_of(LARGE, 2))
    assert [sampler.gather(step) for step in before] == [False, False, True]
    sampler.cut(FastBudget.parse("20%"), ("",) * 32)
    sampler.begin(None, substrate.tiers())
    assert requests(linked) == 1
    steps = steps_of(LARGE, 3, tuple(sampler.cuts.tolist()))
    assert sampler.on_step(steps[0]) is None
    other = steps_of(SMALL, 2)[1]
    sampler.operators.accesses = answer(other)
    # The framework observed a step of another shape, so another step is requested.
    assert sampler.on_step(other) is None
    assert requests(linked) == 1
    sampler.operators.accesses = answer(steps[2])
    sampled = sampler.on_step(steps[2])
    assert sampled is not None
    assert sampled.step is steps[2]
    assert sampled.pages is None


class Watched:
    """A step sampler that samples by the module, whose log the test writes."""

    def __init__(self, linked: Linked, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log = Log()
        monkeypatch.setattr(module, "PageSampler", lambda: self.log)
        link = linked.link
        substrate = EmulatedSubstrate(TierOverrides(emulated="cxl"))
        self.sampling = Sampling(link, MODULE, module.ModuleWatch(Target(link.pid, 1024)))
        self.run = sampler_of(link, substrate)
        assert [self.run.gather(step) for step in steps_of(LARGE, 2)] == [False, True]
        self.run.cut(FastBudget.parse("20%"), ("",) * 32)
        self.run.begin(self.sampling, substrate.tiers())
        self.cuts = tuple(self.run.cuts.tolist())

    def steps(self, count: int) -> list[Step]:
        return steps_of(LARGE, count, self.cuts)


@pytest.fixture
def watched(linked: Linked, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    made = Watched(linked, monkeypatch)
    yield made
    made.sampling.close()


def test_if_the_heap_outgrows_the_armed_pages_another_step_is_sampled(
    linked: Linked, watched: Watched
) -> None:
    base = linked.link.segment.heap_base
    assert watched.log.armed == [(base, 64 * MIB)]
    one, two, three = watched.steps(3)
    linked.set(heap_used=80 * MIB, step=two.number)
    assert watched.run.on_step(one) is None
    assert watched.log.armed == [(base, 64 * MIB), (base, 80 * MIB)]
    # The pages were armed while the second step ran, so this step is not taken.
    assert watched.run.on_step(two) is None
    sampled = watched.run.on_step(three)
    assert sampled is not None
    assert sampled.step is three
    assert sampled.pages is not None
    assert sampled.pages.backend is MODULE
    assert not sampled.pages.incomplete


def test_a_step_is_sampled_incompletely_if_the_heap_grows_in_each_step(
    linked: Linked, watched: Watched
) -> None:
    *growing, last = watched.steps(HEAP_GROWTHS_MAX + 1)
    for number, step in enumerate(growing, 1):
        linked.set(heap_used=(64 + number) * MIB, step=step.number)
        assert watched.run.on_step(step) is None
    linked.set(heap_used=100 * MIB, step=last.number)
    found = watched.run.on_step(last)
    assert found is not None
    assert found.step is last
    assert len(watched.log.armed) == 1 + HEAP_GROWTHS_MAX
    assert found.pages is not None
    assert found.pages.incomplete


class Mover:
    """A mover whose gaps the test counts."""

    gaps = 0

    def watch(self, _: object, begin: Callable[[], None]) -> None:
        begin()

    def unwatch(self, end: Callable[[], object]) -> object:
        return end()


@pytest.mark.parametrize("gaps", [0, 1, 2])
def test_a_step_is_sampled_incompletely_if_the_watch_had_a_gap(
    linked: Linked, watched: Watched, gaps: int
) -> None:
    mover = Mover()
    plan = SimpleNamespace(layout=SimpleNamespace(cuts=watched.run.cuts))
    managed = SimpleNamespace(mover=mover, plan=plan, spaces={Space.HEAP: (0, 4096)})
    watched.run.begin_managed(watched.sampling, cast(Managed, managed))
    mover.gaps = gaps
    (step,) = watched.steps(1)
    watched.run.operators.accesses = answer(step)
    found = watched.run.on_step(step)
    assert found is not None
    assert found.pages is not None
    assert found.pages.incomplete == (gaps > 0)


def too_many(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the step sampler find more samples than may be kept."""
    monkeypatch.setattr(sampling, "MEMORY", SampleMemory(10 * SAMPLE_DTYPE.itemsize, 1 << 30))
    watched.log.records = [(page, 1, 0, 0, 0) for page in range(11)]


def test_with_too_many_samples_the_step_that_the_framework_observed_is_taken(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    too_many(watched, monkeypatch)
    one, two = watched.steps(2)
    assert watched.run.on_step(one) is None
    watched.run.operators.accesses = answer(two)
    sampled = watched.run.on_step(two)
    assert sampled is not None
    assert sampled.step is two
    assert sampled.pages is not None
    assert sampled.pages.backend is SHIM_ONLY
    assert sampled.pages.problem is not None


def test_with_too_many_samples_and_no_answer_of_the_framework_the_search_fails(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    too_many(watched, monkeypatch)
    (step,) = watched.steps(1)
    assert watched.run.on_step(step) is None
    assert not watched.run.overdue()
    monkeypatch.setattr(step_sampler, "OP_ACCESSES_WAIT_S", -1.0)
    with pytest.raises(SentinelError, match="more pages than the machine can sample"):
        watched.run.overdue()
