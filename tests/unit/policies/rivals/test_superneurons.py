# SPDX-License-Identifier: Apache-2.0
"""SuperNeurons' tensor cache and prefetches, checked by hand.

passes.py defines the step: a forward and a backward pass over six layers. The input of layer k is
the output of layer k - 1. The inputs of layers 2, 3 and 4 have gaps between two uses that are long
enough for a swap. Heavy layers are treated as checkpoints. A layer is heavy if its forward pass
takes at least the mean time of the layers' forward passes; see layers_of() in
sentineld/policies/rivals/passes.py.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sentineld.base.errors import SentinelError
from sentineld.model.plan import Plan
from sentineld.model.profile import Profile
from sentineld.model.protocol import Boundary
from sentineld.plan.check import verify
from sentineld.policies.registry import policy
from sentineld.policies.rivals.flashneuron import relieve as relieve_in_order
from sentineld.policies.rivals.passes import layers_of
from sentineld.policies.rivals.superneurons import Mode, idle_for, prefetch_at, relieve
from sentineld.policies.rivals.swaps import Gap, open_book
from sentineld.simulate.simulate import simulate
from tests.unit.policies.rivals.laps import PAGE, Life, lap, moving
from tests.unit.policies.rivals.passes import PAGES, passes

ROOM = 3 * PAGES * PAGE
"""Room for three inputs. In stretch 6, five inputs are alive, so two have to be swapped out."""


def moved(plan: Plan) -> list[tuple[int, int, int]]:
    """(layer whose input moves, boundary, tier) of each move."""
    return [(int(m["tensor"]) + 2, int(m["boundary"]), int(m["tier"])) for m in plan.moves]


def test_the_least_recently_used_output_leaves_when_memory_is_full() -> None:
    # Inputs 2 to 5 are alive in stretch 4, one too many. Input 2 has not been used since stretch 2,
    # so it leaves in stretch 3, in time for the birth in stretch 4. For the birth in stretch 5,
    # input 3 leaves in stretch 4. Every layer is heavy, so each input returns one layer before its
    # use.
    plan = policy("superneurons").plan(passes(), moving(64), ROOM)
    verify(plan, passes(), ROOM)
    assert moved(plan) == [(2, 3, 1), (3, 4, 1), (3, 9, 0), (2, 10, 0)]
    assert plan.notes[0] == "tensors are swapped out in 2 gaps; outputs of checkpoints"
    found = simulate(passes(), policy("superneurons"), moving(64), ROOM)
    assert found.step_seconds == pytest.approx(14)


def test_outputs_of_every_pass_leave() -> None:
    profile = passes(times=2)
    for mode in Mode:
        once, twice = (open_book(one, moving(64), ROOM) for one in (passes(), profile))
        relieve(once, mode)
        relieve(twice, mode)
        assert not twice.over.any()
        assert len(twice.swaps) == 2 * len(once.swaps)
    # No layer is heavy: the prefetch for the second backward pass begins with this pass.
    layers = replace(layers_of(profile), heavy=np.zeros(26, np.bool_))
    gap = Gap(5, 1, 10)
    assert int(twice.birth[5]) + prefetch_at(twice, gap, layers) == 19


def test_nothing_leaves_while_memory_has_room() -> None:
    plan = policy("superneurons").plan(passes(), moving(64), 5 * PAGES * PAGE)
    assert not len(plan.moves)


def with_skip() -> Profile:
    """The first tensor is used again in stretch 4, across a layer (a skip connection). In the
    drawing, x is a use, and [ and ] are birth and death.

    stretch  0   1   2   3   4   5   6   7   8   9  10  11  12
    first       [x           x                           x]
    second          [x   x                           x]
    third                       [x   x   x]
    """
    profile = lap(
        13,
        Life(PAGES, (1, 4, 11), (1, 11)),
        Life(PAGES, (2, 3, 10), (2, 10)),
        Life(PAGES, (5, 6, 7), (5, 7)),
    )
    stretches = profile.stretches.copy()
    stretches["kind"][7:] = Boundary.BACKWARD
    stretches["layer"][7:] = range(6, 0, -1)
    return replace(profile, stretches=stretches)


def test_the_order_is_that_of_uses_and_not_of_births() -> None:
    profile = with_skip()
    book = open_book(profile, moving(64), 2 * PAGES * PAGE)
    # In stretch 5, the first tensor has been idle for one stretch and the second for two.
    assert [idle_for(book, gap, 5) for gap in (Gap(0, 3, 10), Gap(1, 1, 8))] == [1, 2]
    relieve(book, Mode.ALL)
    assert [swap.gap.tensor for swap in book.swaps] == [1]
    # FlashNeuron offloads in the order of births.
    other = open_book(profile, moving(64), 2 * PAGES * PAGE)
    relieve_in_order(other, 0)
    assert [swap.gap.tensor for swap in other.swaps] == [0, 1]


def with_heavy(*layers: int) -> Profile:
    """The step of passes.py, with the given layers three times as long in the forward pass."""
    profile = passes()
    stretches = profile.stretches.copy()
    stretches["time_ns"][list(layers)] *= 3
    return replace(profile, stretches=stretches)


def test_only_outputs_of_checkpoints_leave() -> None:
    # Layer 3 is the only checkpoint of the forward pass. Its output, the input of layer 4, leaves
    # after stretch 4, too late for the birth in stretch 5. The output of layer 1, in mode ALL,
    # leaves early enough.
    room = 4 * PAGES * PAGE
    for mode, inputs in ((Mode.CHECKPOINTS, {4}), (Mode.ALL, {2})):
        book = open_book(with_heavy(3), moving(64), room)
        relieve(book, mode)
        assert {swap.gap.tensor + 2 for swap in book.swaps} == inputs
        assert book.over.any() == (mode == Mode.CHECKPOINTS)
    plan = policy("superneurons").plan(with_heavy(3), moving(64), room)
    verify(plan, with_heavy(3), room)
    assert plan.notes[0].endswith("outputs of all layers")


def test_a_checkpoint_prefetches_for_the_layers_up_to_the_next_one() -> None:
    # The only checkpoint of the backward pass is layer 3, in stretch 10. Input 2 is used after the
    # checkpoint, input 3 in the checkpoint and input 4 before it. So the prefetch of input 2 begins
    # with the checkpoint, and those of inputs 3 and 4 begin with the backward pass, in stretch 7.
    profile = with_heavy(3)
    book, layers = open_book(profile, moving(64), ROOM), layers_of(profile)
    gaps = {layer: Gap(layer - 2, 1, 14 - 2 * layer) for layer in (2, 3, 4)}
    begins = {
        layer: int(book.birth[gap.tensor]) + prefetch_at(book, gap, layers)
        for layer, gap in gaps.items()
    }
    assert begins == {2: 10, 3: 7, 4: 7}


def test_without_room_for_three_inputs_it_is_infeasible() -> None:
    room = 2 * PAGES * PAGE
    with pytest.raises(SentinelError, match="infeasible as published: offloading"):
        policy("superneurons").plan(passes(), moving(64), room)
    plan = policy("superneurons+slow").plan(passes(), moving(64), room)
    verify(plan, passes(), room)
    assert plan.predicted.fast_share < 1
