# SPDX-License-Identifier: Apache-2.0
"""Times of a step's stretches, taken from another step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sentineld.model.protocol import Event
from sentineld.profile.lifetimes import step_lifetimes
from sentineld.profile.steps import Step
from sentineld.profile.times import stretch_times
from tests.unit.profile.toys import last_step, toy
from tests.unit.trainer import PAGE, Trainer


def test_times_are_taken_from_the_other_step() -> None:
    sampled, clean = toy(), toy(steps=4)
    slow = sampled.records.copy()
    begin = slow["time_ns"][0]
    slow["time_ns"] = begin + 3 * (slow["time_ns"] - begin)
    stretched = Step(slow, sampled.number, 0, 0, sampled.live)
    found = step_lifetimes(stretched).stretches
    assert (
        stretch_times(found, clean).tolist() == step_lifetimes(clean).stretches["time_ns"].tolist()
    )


def test_times_of_cuts_are_those_of_their_allocations() -> None:
    cut, clean = step_lifetimes(toy(cuts=(1,)), cuts=(1,)).stretches, toy()
    times = stretch_times(cut, clean).astype(np.int64)
    whole = step_lifetimes(clean).stretches["time_ns"].astype(np.int64)
    assert times.sum() == whole.sum()
    assert times[1] + times[2] == whole[1]
    assert times[1] > 0
    assert times[2] > 0


def test_times_of_another_sequence_are_not_used() -> None:
    found = step_lifetimes(toy()).stretches
    trainer = Trainer()
    for _ in range(2):
        trainer.begin_step()
        trainer.free(trainer.alloc(PAGE))
    trainer.finish()
    assert np.array_equal(stretch_times(found, last_step(trainer)), found["time_ns"])


def test_a_cut_beyond_the_other_step_s_allocations_is_another_sequence() -> None:
    cut, clean = step_lifetimes(toy(cuts=(1,)), cuts=(1,)).stretches, toy()
    late = cut.copy()
    late["cursor"][late["cut"]] = 9
    assert np.array_equal(stretch_times(late, clean), late["time_ns"])


def test_a_clock_that_runs_backwards_gives_no_negative_times() -> None:
    found, other = step_lifetimes(toy()).stretches, toy(steps=4)
    records = other.records.copy()
    boundaries = np.flatnonzero(records["event"] == Event.BOUNDARY)
    records["time_ns"][boundaries[2]] = records["time_ns"][boundaries[1]] - np.uint64(1000)
    times = stretch_times(found, replace(other, records=records)).astype(np.int64)
    assert times[1] == 0
    assert (times >= 0).all()
    assert times.sum() == other.end_ns - int(records["time_ns"][boundaries[0]])
