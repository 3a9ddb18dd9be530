# SPDX-License-Identifier: Apache-2.0
"""Lifetimes of a step's tensors, their kinds, and the peak."""

from __future__ import annotations

import numpy as np
import pytest

from sentineld.base.errors import SentinelError
from sentineld.model.profile import Kind
from sentineld.model.protocol import Boundary, Event
from sentineld.profile.lifetimes import allocation_profile, step_lifetimes
from sentineld.profile.steps import Step
from tests.unit.profile.toys import last_step, toy
from tests.unit.trainer import PAGE, Tensor, Trainer


def test_toy_step() -> None:
    # Each event frees the named tensor ("free" above the name), or allocates it.
    # event      0     1     2     3     4     5
    #            free  saved scr.  free  grad. free
    #            grad.             scr.        saved
    # stretch    0     1     1     1     2     2       3: optimizer, no event
    # saved            [-----------------------)
    # scratch                [-----)
    # gradient   )                       [----------   wraps: lives across the step's end
    # parameter  -----------------------------------   persistent
    found = step_lifetimes(toy())
    saved, scratch, gradient, parameter = found.tensors
    assert found.event_count == 6
    assert found.stretches["event"].tolist() == [0, 1, 4, 6]
    assert found.stretches["cursor"].tolist() == [0, 0, 2, 3]
    assert (saved["birth_event"], saved["death_event"], saved["kind"]) == (1, 5, Kind.ACTIVATION)
    assert (saved["birth_stretch"], saved["death_stretch"]) == (1, 2)
    assert (scratch["birth_event"], scratch["death_event"], scratch["kind"]) == (2, 3, Kind.SCRATCH)
    assert (gradient["birth_event"], gradient["death_event"]) == (4, 0)
    assert gradient["wraps"]
    assert gradient["kind"] == Kind.GRADIENT
    assert (gradient["birth_stretch"], gradient["death_stretch"]) == (2, 0)
    assert (parameter["slot"], parameter["kind"], parameter["bytes"]) == (
        -1,
        Kind.PERSISTENT,
        4 * PAGE,
    )


def test_each_optimizer_has_gradients() -> None:
    """As in the training of a GAN, whose step has two backward passes, each with an optimizer."""
    trainer = Trainer()
    for _ in range(3):
        trainer.begin_step()
        for _ in range(2):
            trainer.boundary(Boundary.FORWARD, "a")
            saved = trainer.alloc(2 * PAGE)
            trainer.boundary(Boundary.BACKWARD, "a")
            gradient = trainer.alloc(3 * PAGE)
            trainer.free(saved)
            trainer.boundary(Boundary.OPTIMIZER)
            trainer.free(gradient)
    trainer.finish()
    kinds = step_lifetimes(last_step(trainer)).tensors["kind"].tolist()
    assert kinds == [Kind.ACTIVATION, Kind.GRADIENT] * 2


def test_optimizers_within_the_backward_pass_use_no_gradients_of_activations() -> None:
    """With an optimizer for each layer, the gradient of a layer's input outlives the optimizer."""
    trainer = Trainer()
    for _ in range(3):
        trainer.begin_step()
        passed: list[Tensor] = []
        for layer in ("b", "a"):
            trainer.boundary(Boundary.BACKWARD, layer)
            own, following = trainer.alloc(3 * PAGE), trainer.alloc(2 * PAGE)
            trainer.free(*passed)
            passed = [following]
            trainer.boundary(Boundary.OPTIMIZER)
            trainer.free(own)
        trainer.free(*passed)
    trainer.finish()
    kinds = step_lifetimes(last_step(trainer)).tensors["kind"].tolist()
    assert kinds[:3] == [Kind.GRADIENT, Kind.ACTIVATION, Kind.GRADIENT]


def test_gradients_may_live_into_the_next_backward_pass() -> None:
    """As in a WGAN-GP: the penalty is computed by a backward pass before zero_grad()."""
    trainer = Trainer()
    for _ in range(3):
        trainer.begin_step()
        gradient: Tensor | None = None
        for _ in range(2):
            trainer.boundary(Boundary.FORWARD, "a")
            trainer.boundary(Boundary.BACKWARD, "a")
            if gradient is not None:
                trainer.free(gradient)
            trainer.boundary(Boundary.BACKWARD, "a")
            gradient = trainer.alloc(3 * PAGE)
            trainer.boundary(Boundary.OPTIMIZER)
        assert gradient is not None
        trainer.free(gradient)
    trainer.finish()
    kinds = step_lifetimes(last_step(trainer)).tensors["kind"].tolist()
    assert kinds == [Kind.GRADIENT] * 2


def test_peak_counts_whole_pages() -> None:
    # Live pages at event 4: parameter 4 + saved 2 + gradient 3 = 9. Live pages at event 2:
    # parameter 4 + saved 2 + scratch 2 = 8.
    assert allocation_profile(toy(), ["", "a"]).peak_bytes == 9 * PAGE


def test_a_tensor_across_the_step_s_end_has_two_instances() -> None:
    found = step_lifetimes(toy())
    gradient = found.instances[found.instances["tensor"] == 2]
    assert sorted(zip(gradient["first_stretch"], gradient["last_stretch"], strict=True)) == [
        (0, 0),
        (2, 3),
    ]


def test_tensors_with_unrecorded_births_are_matched_by_size() -> None:
    # The ring begins with the last step. So it lacks the birth of the tensor that is freed first.
    known, matched = step_lifetimes(toy()), step_lifetimes(toy(forget=2))
    assert np.array_equal(known.tensors, matched.tensors)


def test_cuts_are_distinguished_from_other_boundaries() -> None:
    found = step_lifetimes(toy(cuts=(1,)), cuts=(1,))
    assert found.stretches["cut"].tolist() == [False, False, True, False, False]
    assert not step_lifetimes(toy(cuts=(1,)), cuts=()).stretches["cut"].any()


def test_tensors_that_live_longer_than_a_step_are_persistent() -> None:
    trainer = Trainer()
    losses: list[Tensor] = []
    for _ in range(4):
        trainer.begin_step()
        losses.append(trainer.alloc(PAGE))
        if len(losses) > 2:
            trainer.free(losses.pop(0))
    trainer.finish()
    found = step_lifetimes(last_step(trainer))
    (loss,) = found.tensors
    assert (loss["slot"], loss["kind"], loss["wraps"]) == (0, Kind.PERSISTENT, False)


def test_an_incomplete_step_is_refused() -> None:
    step = toy()
    first = np.flatnonzero((step.records["event"] == Event.ALLOC) & (step.records["value"] == 0))
    holed = np.delete(step.records, first)
    with pytest.raises(SentinelError, match="not recorded completely"):
        step_lifetimes(Step(holed, step.number, step.end_ns, step.end_epoch, step.live))
