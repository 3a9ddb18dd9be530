# SPDX-License-Identifier: Apache-2.0
"""Cuts are as late and as few as possible, and lie only at allocations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sentineld.model.protocol import Boundary, Event
from sentineld.plan.cuts import CUTS_MAX, before_optional, choose_cuts, provisional_layout
from sentineld.profile.lifetimes import step_lifetimes
from sentineld.profile.steps import Step, StepCutter
from tests.unit.trainer import MIB, PAGE, Trainer
from tests.unit.workloads import Network, train


def optimizer_step(parts: int, cuts: tuple[int, ...] = (), size: int = PAGE) -> Step:
    """A step with one long stretch of `parts` parts. Each part allocates a scratch tensor, uses it
    and frees it."""
    trainer = Trainer(bytes_per_s=1e9, cuts=cuts)
    trainer.begin_step()
    trainer.boundary(Boundary.OPTIMIZER)
    for _ in range(parts):
        scratch = trainer.alloc(size)
        trainer.touch([scratch], [])
        trainer.free(scratch)
    trainer.finish()
    return StepCutter().feed(trainer.take_records())[-1]


def test_each_stretch_is_cut_as_late_as_the_limit_allows() -> None:
    # One stretch has 20 parts of equal time. A fifth of the step holds 4 parts. The first new
    # stretch also holds the time before the first part, which leaves room for 3 parts.
    step = optimizer_step(20)
    cuts = choose_cuts(step, 1 << 30, share_max=0.2)
    assert cuts.tolist() == [3, 7, 11, 15, 19]
    times = step_lifetimes(optimizer_step(20, tuple(cuts.tolist())), cuts).stretches["time_ns"]
    assert times.max() <= 0.2 * times.sum()


def test_births_are_limited() -> None:
    # With a budget of 16 pages, at most 8 pages, half of the budget, are born in a stretch: two
    # parts of 3 pages fit.
    assert choose_cuts(optimizer_step(6, size=3 * PAGE), 16 * PAGE, 1.0).tolist() == [2, 4]


def test_a_tensor_larger_than_the_limit_gets_a_separate_stretch() -> None:
    assert choose_cuts(optimizer_step(3, size=30 * PAGE), 16 * PAGE, 1.0).tolist() == [1, 2]


def test_an_optimizer_touches_all_live_tensors_not_only_its_scratch() -> None:
    # There are 4 parameters of 8 pages, each with a scratch page. A stretch may touch at most 24
    # pages, half of the budget. For each allocation of a scratch page, choose_cuts() assumes that
    # 24 pages are touched: one parameter of 8 pages, times the safety factor OPTIMIZER_MARGIN, 3.
    def trained(cuts: tuple[int, ...] = ()) -> Trainer:
        trainer = Trainer(cuts=cuts)
        parameters = [trainer.alloc(8 * PAGE) for _ in range(4)]
        for _ in range(3):
            trainer.begin_step()
            trainer.boundary(Boundary.OPTIMIZER)
            for parameter in parameters:
                scratch = trainer.alloc(PAGE)
                trainer.touch([scratch], [parameter])
                trainer.free(scratch)
        trainer.finish()
        return trainer

    step = StepCutter().feed(trained().take_records())[-1]
    tight = choose_cuts(step, 48 * PAGE, 1.0)
    assert tight.tolist() == [1, 2, 3]
    assert choose_cuts(step, 1024 * PAGE, 1.0).tolist() == []
    again = StepCutter().feed(trained(tuple(tight.tolist())).take_records())[-1]
    assert step_lifetimes(again, tight).stretches["cut"].sum() == len(tight)


def test_lost_records_are_tolerated() -> None:
    network = Network(blocks=2, weight_bytes=PAGE, activation_bytes=PAGE)
    step = StepCutter().feed(train(network, 3).take_records())[-1]
    allocs = np.flatnonzero(step.records["event"] == Event.ALLOC)
    for lost in range(len(allocs)):
        for missing in (allocs[:lost], allocs[len(allocs) - lost :]):
            left = replace(step, records=np.delete(step.records, missing))
            cuts = choose_cuts(left, PAGE, share_max=0.01)
            assert np.all(np.diff(cuts.astype(np.int64)) > 0)
            assert np.all(cuts < len(allocs) - lost)


def test_the_number_of_cuts_is_limited() -> None:
    cuts = choose_cuts(optimizer_step(10_000), 1)
    assert CUTS_MAX / 2 < len(cuts) <= CUTS_MAX
    # The cuts are spread evenly over the step.
    assert np.unique(np.diff(cuts.astype(np.int64))).tolist() == [10]


def test_short_stretches_are_not_cut() -> None:
    assert choose_cuts(optimizer_step(20), 1 << 30, share_max=1.0).tolist() == []


def test_cuts_make_every_stretch_of_a_training_step_short() -> None:
    network = Network(blocks=3, weight_bytes=MIB // 4, activation_bytes=MIB // 4)
    step = StepCutter().feed(train(network, 3).take_records())[-1]
    before = step_lifetimes(step).stretches["time_ns"].astype(np.int64)
    cuts = choose_cuts(step, 8 * MIB)
    again = StepCutter().feed(train(network, 3, tuple(cuts.tolist())).take_records())[-1]
    after = step_lifetimes(again, cuts).stretches
    assert after["cut"].sum() == len(cuts)
    assert after["time_ns"].max() < before.max() / 4
    layout = provisional_layout(step, cuts)
    assert len(layout.waits) == len(after)
    assert not layout.slots["flags"].any()
    assert np.array_equal(
        layout.slots["bytes"], step_lifetimes(step).tensors["bytes"][: len(layout.slots)]
    )


def test_a_cut_never_follows_an_optional_allocation() -> None:
    # allocation  0  1  2  3  4  5  6
    # optional    x  -  x  x  -  -  x
    # cut            |        |     |  a cut precedes its allocation
    optional = np.array([True, False, True, True, False, False, True])
    cuts = np.array([1, 4, 6], np.uint32)
    assert before_optional(cuts, optional).tolist() == [2, 6]
    assert before_optional(np.array([3, 4, 7], np.uint32), optional).tolist() == [2, 6]
    assert before_optional(cuts, np.zeros(0, np.bool_)).tolist() == [1, 4, 6]
