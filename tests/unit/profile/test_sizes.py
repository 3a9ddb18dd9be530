# SPDX-License-Identifier: Apache-2.0
"""Steps that differ in the sizes of allocations only, and the sizes that a plan for them needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentineld.model.protocol import TENSOR_BYTES_MIN, Boundary
from sentineld.profile.attribution import build_profile
from sentineld.profile.sizes import (
    OPTIONAL_BYTES_MAX,
    STRUCTURES_MAX,
    SeenSteps,
    Similar,
    Sizes,
    with_sizes,
)
from sentineld.profile.steps import Step, StepCutter, births, identical, structure_digest
from tests.unit.trainer import MIB, PAGE, Tensor, Trainer
from tests.unit.workloads import Network, train

LENGTHS = range(16, 33)


@dataclass(frozen=True)
class Operation:
    """Part of a step: a boundary, or an allocation whose tensor is freed some operations later."""

    boundary: bool
    base: int  # size of the allocation, per unit of length
    constant: bool  # the base is the size, whatever the length
    lives: int  # number of operations; the next step frees what is left

    def size(self, length: int) -> int:
        return self.base * MIB if self.constant else self.base * length


# A base is more than twice the next smaller one, and no length more than twice another. So no
# allocation fits the place of one that is missing because it is too small.
OPERATIONS = st.lists(
    st.builds(
        Operation,
        boundary=st.sampled_from([False, False, True]),
        base=st.sampled_from([3**n for n in range(3, 9)]),
        constant=st.booleans(),
        lives=st.integers(1, 12),
    ),
    min_size=1,
    max_size=20,
)


def train_lengths(operations: Sequence[Operation], lengths: Sequence[int]) -> list[Step]:
    """A step of each length. The shim does not see allocations below 4 KiB."""
    trainer, left = Trainer(), list[Tensor]()
    for length in (*lengths[:1], *lengths):
        trainer.begin_step()
        trainer.free(*left)
        alive: list[tuple[int, Tensor]] = []
        for at, operation in enumerate(operations):
            trainer.free(*(tensor for dies, tensor in alive if dies == at))
            alive = [one for one in alive if one[0] > at]
            if operation.boundary:
                trainer.boundary(Boundary.FORWARD, f"layer{at}")
            elif (size := operation.size(length)) >= TENSOR_BYTES_MIN:
                alive.append((at + operation.lives, trainer.alloc(size)))
        left = [tensor for _, tensor in alive]
    trainer.finish()
    return StepCutter().feed(trainer.take_records())[1:]


def seen(steps: Sequence[Step]) -> SeenSteps:
    found = SeenSteps()
    for step in steps:
        found.add(step)
    return found


@given(OPERATIONS, st.lists(st.sampled_from(LENGTHS), min_size=1, max_size=8))
def test_all_lengths_fit_the_sizes_of_the_longest(
    operations: list[Operation], lengths: list[int]
) -> None:
    steps = train_lengths(operations, [*lengths, max(lengths), LENGTHS[-1], LENGTHS[-1] - 1])
    similar = seen(steps).most_similar(1)
    longest = next(step for step in steps if len(births(step)) == len(births(steps[-2])))
    if all(identical(longest, step) for step in steps):
        assert similar is None
        return
    assert similar is not None
    assert similar.steps == len(steps)
    assert similar.sizes.most.tolist() == births(steps[-2]).tolist()
    assert identical(similar.largest, steps[-2])
    made = [
        operation
        for operation in operations
        if not operation.boundary and operation.size(LENGTHS[-1]) >= TENSOR_BYTES_MIN
    ]
    assert similar.sizes.vary.tolist() == [not operation.constant for operation in made]
    assert similar.sizes.optional.tolist() == [
        not operation.constant and operation.size(LENGTHS[-1]) < OPTIONAL_BYTES_MAX
        for operation in made
    ]
    for step in steps:
        assert similar.sizes.take(births(step).tolist())
    assert not similar.sizes.take([*births(steps[-2]).tolist(), PAGE])
    assert not similar.sizes.take(births(train_lengths(operations, [LENGTHS[-1] + 1])[0]).tolist())


def steps_of(*networks: Network) -> list[Step]:
    """A steady step of each network's training."""
    return [StepCutter().feed(train(network, 3).take_records())[1] for network in networks]


SMALL = Network(blocks=2, weights=1, activation_bytes=MIB)
LARGE = replace(SMALL, activation_bytes=2 * MIB)
DEEPER = replace(SMALL, blocks=3)


def test_the_structure_leaves_out_sizes_and_cuts() -> None:
    small, large, deeper = steps_of(SMALL, LARGE, DEEPER)
    cut = StepCutter().feed(train(LARGE, 3, (2, 4)).take_records())[1]
    assert structure_digest(small) == structure_digest(large) == structure_digest(cut)
    assert structure_digest(small) != structure_digest(deeper)


def test_steps_of_another_structure_are_not_similar() -> None:
    small, large, deeper = steps_of(SMALL, LARGE, DEEPER)
    found = seen([small, large, deeper, deeper])
    assert found.most_similar(0.6) is None
    similar = found.most_similar(0.5)
    assert similar is not None
    assert similar.steps == 2
    assert similar.sizes.take(births(small).tolist())
    assert not similar.sizes.take(births(deeper).tolist())


def test_identical_steps_need_no_plan_for_varying_sizes() -> None:
    (small,) = steps_of(SMALL)
    found = seen([small] * 5)
    assert found.share_of_sequence() == 1
    assert found.most_similar(0.5) is None


def test_the_structure_seen_least_is_dropped() -> None:
    networks = [replace(SMALL, blocks=2 + n) for n in range(STRUCTURES_MAX + 1)]
    steps = steps_of(*networks)
    large = steps_of(*(replace(one, activation_bytes=2 * MIB) for one in networks[:1]))
    found = seen([steps[0], *large, *large, *steps[1:]])
    similar = found.most_similar(0.1)
    assert similar is not None
    assert similar.steps == 3


def test_impossible_sizes_are_refused() -> None:
    small, large = steps_of(SMALL, LARGE)
    for step in (small, large):
        step.records["bytes"][step.records["event"] == 3] = 1
    huge = small.records.copy()
    own = np.isin(huge["bytes"], births(small))
    huge["bytes"][own] = 1 << 62
    assert seen([large, replace(small, records=huge)]).most_similar(0.5) is None


def sizes(most: list[int], vary: str, optional: str = "") -> Sizes:
    """A letter for each allocation: v if it varies or is optional, else -."""
    flags = [np.array([letter == "v" for letter in text]) for text in (vary, optional or vary)]
    return Sizes(np.array(most, np.uint64), flags[0], flags[1] & bool(optional))


@pytest.mark.parametrize(
    ("other", "covered"),
    [
        (sizes([8, 6, 4], "---"), True),
        (sizes([8, 4, 4], "---"), True),
        (sizes([8, 4, 4], "-v-", "-v-"), True),
        (sizes([8, 7, 4], "---"), False),
        (sizes([7, 6, 4], "---"), False),
        (sizes([8, 6, 4], "v--"), False),
        (sizes([8, 6, 4], "--v", "--v"), False),
        (sizes([8, 6], "--"), False),
    ],
)
def test_sizes_cover_equal_ones_and_smaller_ones_where_they_vary(
    other: Sizes, covered: bool
) -> None:
    assert sizes([8, 6, 4], "-v-", "-v-").cover(other) == covered


def test_a_profile_at_full_size_accesses_tensors_to_the_same_extent() -> None:
    trainer = train(SMALL, 3)
    step = StepCutter().feed(trainer.take_records())[-1]
    profile = build_profile(step, trainer.take_samples(), trainer.take_ops(), trainer.layers)
    (large,) = steps_of(LARGE)
    grown = with_sizes(profile, Sizes.of(step).joined(Sizes.of(large)))
    assert grown.slot_count == profile.slot_count
    slotted = profile.tensors["slot"] >= 0
    assert grown.tensors["bytes"][slotted].tolist() == births(large).tolist()
    assert np.array_equal(grown.tensors[~slotted], profile.tensors[~slotted])
    rows = profile.accesses["tensor"]
    ratio = (grown.tensors["bytes"] / profile.tensors["bytes"])[rows]
    for name in ("bytes_read", "bytes_written", "pages"):
        assert np.array_equal(grown.accesses[name], profile.accesses[name] * ratio)
    assert profile.peak_bytes < grown.peak_bytes <= 2 * profile.peak_bytes


def test_steps_that_lack_an_allocation_that_never_varies_are_not_similar() -> None:
    lengths = train_lengths([Operation(False, 3**6, False, 9), Operation(False, 1, True, 9)], [20])
    whole = Similar(2, Sizes.of(lengths[0]), lengths[0])
    (lacking,) = train_lengths([Operation(False, 3**6, False, 9)], [20])
    assert whole.joined(Similar(1, Sizes.of(lacking), lacking)) is None
