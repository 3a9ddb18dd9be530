# SPDX-License-Identifier: Apache-2.0
"""The pool of short-lived tensors."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sentineld.base.errors import SentinelError
from sentineld.model.profile import Kind, Profile
from sentineld.policies.sentinel.pool import largest_pool, whole_pool
from tests.unit.plan.toys import LARGE, large_profile, toy_profile

ACTIVATION, SCRATCH, GRADIENT, STATE, PARAMETER = range(5)
SCRATCH_PAGES = LARGE - 1  # LARGE pages minus 6,400 bytes, rounded up to whole pages
BOTH_PAGES = 2 * LARGE + SCRATCH_PAGES


def two_short_lived() -> Profile:
    """The large toy, changed so that the activation also dies in stretch 0, after the scratch."""
    profile = large_profile()
    tensors = profile.tensors.copy()
    tensors["death_stretch"][ACTIVATION] = 0
    tensors["death_event"][ACTIVATION] = 4
    return replace(profile, tensors=tensors)


def test_tensors_that_die_in_their_layer_form_the_pool() -> None:
    split = whole_pool(toy_profile(), 1)
    assert split.pooled.tolist() == [SCRATCH]
    assert split.candidates.tolist() == [ACTIVATION, GRADIENT, STATE, PARAMETER]
    assert split.pool_pages == 1
    assert whole_pool(two_short_lived(), BOTH_PAGES).pooled.tolist() == [ACTIVATION, SCRATCH]


def test_a_pool_beyond_the_budget_is_infeasible_as_published() -> None:
    with pytest.raises(SentinelError, match=r"infeasible as published.* need 764.0 KiB") as error:
        whole_pool(two_short_lived(), BOTH_PAGES - 1)
    assert "sentinel+spill" in (error.value.hint or "")


def test_the_largest_tensors_are_left_out_of_a_smaller_pool() -> None:
    profile = two_short_lived()
    for limit, pooled in (
        (BOTH_PAGES, [ACTIVATION, SCRATCH]),
        (BOTH_PAGES - 1, [SCRATCH]),
        (SCRATCH_PAGES - 1, []),
    ):
        split = largest_pool(profile, limit)
        assert split.pooled.tolist() == pooled
        assert split.pool_pages <= limit


def test_tensors_outside_heap_and_arena_are_neither_pooled_nor_scheduled() -> None:
    profile = toy_profile()
    tensors = profile.tensors.copy()
    tensors["address"][STATE] = profile.heap_base - 4096
    tensors["kind"][GRADIENT] = Kind.PERSISTENT  # born in the step, and alive after it
    split = whole_pool(replace(profile, tensors=tensors), 1)
    assert split.candidates.tolist() == [ACTIVATION, PARAMETER]
