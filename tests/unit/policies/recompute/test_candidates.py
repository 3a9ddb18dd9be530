# SPDX-License-Identifier: Apache-2.0
"""Which tensors a profile permits to be computed again.

A segment consists of the consecutive layers that are executed again, here usually of one layer. The
step and its tensors (x, y, z, g, W and the scratch tensor) are those of layered_profile().
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sentineld.model.profile import ACCESS_DTYPE, Profile
from sentineld.model.protocol import Boundary, Placement
from sentineld.policies.recompute.candidates import (
    Recomputation,
    Step,
    candidates,
    compatible,
    permitted,
)
from tests.unit.policies.recompute.toys import W, X, Y, layered_profile, row

OF_X = Recomputation(1, 1, 5, ((X, 2),), frozenset(), 1_000_000)
OF_Y = Recomputation(2, 2, 5, ((Y, 3),), frozenset({X, W}), 10_000)


def with_access(profile: Profile, stretch: int, tensor: int, how: str) -> Profile:
    """The profile with this access, which replaces any access to the same tensor in the stretch."""
    rows = profile.accesses
    others = rows[(rows["stretch"] != stretch) | (rows["tensor"] != tensor)]
    new = np.array([row(profile.tensors, stretch, tensor, how)], ACCESS_DTYPE)
    every = np.concatenate([others, new])
    return replace(profile, accesses=np.sort(every, order=["stretch", "tensor"]))


def test_a_tensor_with_a_gap_between_its_uses_is_a_candidate() -> None:
    # z has no gap, g is not an activation, and the scratch tensor is too small.
    assert candidates(layered_profile()) == (OF_X, OF_Y)


def test_the_candidates_that_free_most_for_their_time_are_kept() -> None:
    # The times are those of stretches 1 to 4 (TIMES_NS in toys.py). To compute x again takes 1 ms,
    # and x would be absent for 100 us. To compute y again takes 10 us, and y would be absent for
    # 50 us.
    assert candidates(layered_profile(), limit=1) == (OF_Y,)


@pytest.mark.parametrize(
    ("stretch", "tensor", "how"),
    [
        (4, W, "w"),  # an input changes after the segment
        (2, W, "rw"),  # the segment changes a tensor that it did not make
        (4, Y, "r"),  # the tensor has no gap
    ],
)
def test_y_is_no_candidate_after_another_access(stretch: int, tensor: int, how: str) -> None:
    found = candidates(with_access(layered_profile(), stretch, tensor, how))
    assert all(Y not in one.tensors for one in found)


def test_a_dead_input_extends_the_segment_to_the_layer_that_made_it() -> None:
    profile = layered_profile()
    tensors = profile.tensors.copy()
    tensors["death_stretch"][X], tensors["death_event"][X] = 4, 7
    rows = profile.accesses[(profile.accesses["stretch"] != 5) | (profile.accesses["tensor"] != X)]
    found = candidates(replace(profile, tensors=tensors, accesses=rows))
    assert found == (Recomputation(1, 2, 5, ((Y, 3),), frozenset({W}), 1_010_000),)


def test_a_changed_input_extends_the_segment_to_the_layer_that_made_it() -> None:
    found = candidates(with_access(layered_profile(), 4, X, "w"))
    assert Recomputation(1, 2, 5, ((Y, 3),), frozenset({W}), 1_010_000) in found


def test_a_change_in_place_extends_the_segment_to_the_layer_that_makes_it() -> None:
    found = candidates(with_access(layered_profile(), 3, Y, "rw"))
    assert Recomputation(2, 3, 5, ((Y, 3),), frozenset({X, W}), 60_000) in found


def test_a_tensor_of_another_pass_or_with_a_placement_is_no_candidate() -> None:
    profile = layered_profile()
    stretches, tensors = profile.stretches.copy(), profile.tensors.copy()
    stretches["kind"][1:4] = Boundary.BACKWARD
    assert candidates(replace(profile, stretches=stretches)) == ()
    tensors["placed"] = Placement.FAST
    assert candidates(replace(profile, tensors=tensors)) == ()


def test_an_input_must_be_there_when_it_is_read() -> None:
    assert not compatible([OF_X], OF_Y)
    assert not compatible([OF_Y], OF_X)
    assert not compatible([OF_Y], OF_Y)
    assert compatible([], OF_Y)
    # If x is computed again in stretch 4, it is present when y's segment reads it in stretch 5.
    assert compatible([replace(OF_X, at=4)], OF_Y)


def test_a_given_segment_is_permitted_or_not() -> None:
    profile = layered_profile()
    assert permitted(Step(profile), 2, 2) == OF_Y
    assert permitted(Step(profile), 1, 2) == Recomputation(
        1, 2, 5, ((X, 2), (Y, 3)), frozenset({W}), 1_010_000
    )
    assert permitted(Step(profile), 3, 3) is None
    assert permitted(Step(with_access(profile, 4, X, "w")), 2, 2) is None
