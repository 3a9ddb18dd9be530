# SPDX-License-Identifier: Apache-2.0
"""Layers of a step, and tensors that live within one layer."""

from __future__ import annotations

from sentineld.model.profile import Kind
from sentineld.model.protocol import Boundary
from sentineld.plan.layers import layer_of_stretch, short_lived
from tests.unit.plan.toys import toy_profile

SCRATCH, GRADIENT = 1, 2


def test_short_lived_tensors_die_in_the_layer_of_their_birth() -> None:
    assert short_lived(toy_profile()).tolist() == [False, True, False, False, False]


def test_a_cut_does_not_begin_a_layer() -> None:
    profile = toy_profile()
    assert layer_of_stretch(profile).tolist() == [1, 2, 3, 4]
    profile.stretches["kind"][2] = Boundary.CUT
    assert layer_of_stretch(profile).tolist() == [1, 2, 2, 3]


def test_a_tensor_that_lives_across_a_cut_of_its_layer_is_short_lived() -> None:
    profile = toy_profile()
    profile.stretches["kind"][1:3] = Boundary.CUT
    assert short_lived(profile).tolist() == [True, True, False, False, False]


def test_a_tensor_that_lives_into_the_next_step_is_not_short_lived() -> None:
    profile = toy_profile()
    # The gradient is now born in stretch 2 and freed in stretch 2 of the next step.
    profile.tensors["death_stretch"][GRADIENT] = 2
    profile.tensors["death_event"][GRADIENT] = 4
    assert not short_lived(profile)[GRADIENT]
    profile.tensors["kind"][SCRATCH] = Kind.PERSISTENT
    assert not short_lived(profile)[SCRATCH]
