# SPDX-License-Identifier: Apache-2.0
"""Steps that differ only in the sizes of allocations, and the sizes that a plan for them needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentineld.model.protocol import TENSOR_BYTES_MIN, Boundary
from sentineld.profile import sizes
from sentineld.profile.attribution import build_profile
from sentineld.profile.lifetimes import allocation_profile, unplanned
from sentineld.profile.sizes import (
    STRUCTURES_MAX,
    SeenSteps,
    Similar,
    Sizes,
    with_sizes,
)
from sentineld.profile.steps import (
    Step,
    StepCutter,
    births,
    identical,
    kept_records,
    structure_digest,
)
from tests.unit.trainer import MIB, PAGE, Tensor, Trainer
from tests.unit.workloads import Network, train

LENGTHS = range(16, 33)


@dataclass(frozen=True)
class Operation:
    """Part of a step: a boundary, or an allocation whose tensor is freed some operations later."""

    boundary: bool
    base: int  # size of the allocation, per unit of length
    constant: bool  # the size is the base in MiB, whatever the length
    lives: int  # operations until the free; the next step frees tensors that are still alive

    def size(self, length: int) -> int:
        return self.base * MIB if self.constant else self.base * length


# Each base is more than twice the next smaller base, and no length is more than twice another
# length. So if an allocation of a step is not recorded because it is below 4 KiB, each recorded
# allocation of the step is too large for the slot of the missing one.
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
    """A step for each of the lengths, which determine the sizes of allocations. The shim does not
    see allocations below 4 KiB."""
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
    assert similar.sizes.largest_bytes.tolist() == births(steps[-2]).tolist()
    assert identical(similar.largest, steps[-2])
    made = [
        operation
        for operation in operations
        if not operation.boundary and operation.size(LENGTHS[-1]) >= TENSOR_BYTES_MIN
    ]
    assert similar.sizes.vary.tolist() == [not operation.constant for operation in made]
    assert similar.sizes.optional.tolist() == [
        operation.size(min(lengths)) < TENSOR_BYTES_MIN for operation in made
    ]
    for step in steps:
        assert similar.sizes.accept(births(step).tolist())
    assert not similar.sizes.accept([*births(steps[-2]).tolist(), PAGE])
    assert not similar.sizes.accept(
        births(train_lengths(operations, [LENGTHS[-1] + 1])[0]).tolist()
    )


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
    assert similar.sizes.accept(births(small).tolist())
    assert not similar.sizes.accept(births(deeper).tolist())


def test_identical_steps_need_no_plan_for_varying_sizes() -> None:
    (small,) = steps_of(SMALL)
    found = seen([small] * 5)
    assert found.identical()
    assert found.most_similar(0.5) is None


def test_the_structure_seen_least_is_dropped() -> None:
    networks = [replace(SMALL, blocks=2 + n) for n in range(STRUCTURES_MAX + 1)]
    steps = steps_of(*networks)
    large = steps_of(*(replace(one, activation_bytes=2 * MIB) for one in networks[:1]))
    found = seen([steps[0], *large, *large, *steps[1:]])
    similar = found.most_similar(0.1)
    assert similar is not None
    assert similar.steps == 3


def test_large_steps_of_many_structures_are_not_all_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    small, large, deeper = steps_of(SMALL, LARGE, DEEPER)
    monkeypatch.setattr(sizes, "RECORDS_MAX", kept_records(small) + kept_records(deeper))
    similar = seen([small, large, deeper]).most_similar(0.6)
    assert similar is not None
    monkeypatch.setattr(sizes, "RECORDS_MAX", kept_records(deeper))
    assert seen([deeper, deeper, small, large]).most_similar(0.5) is None
    monkeypatch.setattr(sizes, "RECORDS_MAX", 1)
    assert seen([small, large]).most_similar(1) is not None


def test_impossible_sizes_are_recognised() -> None:
    (small,) = steps_of(SMALL)
    found = Sizes.of(small)
    assert found.possible
    assert not replace(found, largest_bytes=found.largest_bytes + np.uint64(1 << 62)).possible


def test_an_extra_allocation_in_one_step_does_not_become_part_of_the_plan() -> None:
    operations = [Operation(False, 3**6, False, 4), Operation(False, 3**7, False, 4)]
    extra = [*operations, Operation(False, 3, True, 1)]
    steps = [*train_lengths(operations, range(17, 32)), *train_lengths(extra, [20])]
    similar = seen(steps).most_similar(0.75)
    assert similar is not None
    assert similar.steps == 15
    assert len(similar.sizes.vary) == 2


def test_large_allocations_are_never_optional() -> None:
    operations = [Operation(False, 3**8, False, 4), Operation(False, 3**5, False, 4)]
    steps = train_lengths(operations, [16, 17, 30, 31, 32])
    similar = seen(steps).most_similar(1)
    assert similar is not None
    assert similar.sizes.optional.tolist() == [False, True]
    assert similar.sizes.with_small_optional().optional.tolist() == [False, True]
    assert similar.sizes.missing_candidates(1).tolist() == [False, True]


def test_a_missing_allocation_whose_successor_fits_its_slot_makes_steps_differ() -> None:
    # The shortest step has only the second allocation. This allocation is no larger than the first
    # allocation of the other steps, so the shim would put it into the first slot.
    operations = [Operation(False, 3**5, False, 9), Operation(False, 3**5 + 1, False, 9)]
    steps = train_lengths(operations, [32, 31, 32, 31])
    first_is_missing = train_lengths([Operation(False, 3**5 + 1, False, 9)], [17])
    assert len(births(first_is_missing[0])) == 1
    similar = seen([*steps, *first_is_missing]).most_similar(0.5)
    assert similar is not None
    assert similar.steps == len(steps)


def test_optional_allocations_get_no_place() -> None:
    operations = [Operation(False, 3**8, False, 4), Operation(False, 3**5, False, 4)]
    (step,) = train_lengths(operations, [32])
    profile = allocation_profile(step, ("",) * 8)
    found = with_sizes(profile, Sizes(births(step), *np.array([[True, True], [False, True]])))
    assert unplanned(profile.tensors).tolist() == [False, False]
    assert unplanned(found.tensors).tolist() == [False, True]


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
    lengths = train_lengths(
        [Operation(False, 3**6, False, 9), Operation(False, 3**5, False, 9)], [20]
    )
    whole = Similar(2, Sizes.of(lengths[0]), lengths[0])
    (lacking,) = train_lengths([Operation(False, 3**6, False, 9)], [20])
    assert whole.joined(Similar(1, Sizes.of(lacking), lacking)) is whole
