# SPDX-License-Identifier: Apache-2.0
"""Chunks of the toy profile's tensors, and the page accesses to them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentineld.model.profile import Kind
from sentineld.plan.items import (
    access_counts,
    access_pages,
    by_position,
    chunks,
    lifetimes,
    persistent,
    share_passed,
    tensor_pages,
    transient,
)
from tests.unit.plan.toys import PAGE, toy_profile

ACTIVATION, SCRATCH, GRADIENT, STATE, PARAMETER = range(5)


def test_sizes_are_rounded_up_to_pages() -> None:
    assert tensor_pages(toy_profile()).tolist() == [2, 1, 2, 4, 2]


def test_lifetimes_wrap_around_the_step_and_are_at_most_a_step_long() -> None:
    birth, length = lifetimes(toy_profile())
    assert birth.tolist() == [0, 0, 2, 0, 0]
    assert length.tolist() == [3, 1, 3, 4, 4]
    profile = toy_profile()
    # The gradient is now born in stretch 2 and freed in stretch 2 of the next step.
    profile.tensors["death_stretch"][GRADIENT] = 2
    assert lifetimes(profile)[1][GRADIENT] == 4


def test_transient_and_persistent_tensors() -> None:
    profile = toy_profile()
    assert transient(profile).tolist() == [True, True, True, False, False]
    assert persistent(profile).tolist() == [False, False, False, True, True]
    # The scratch now outlives its step, so it is not planned in the arena. The state now lies
    # outside the shim's heap, so it does not count as a persistent tensor of the heap.
    profile.tensors["kind"][SCRATCH] = Kind.PERSISTENT
    profile.tensors["address"][STATE] = profile.heap_base - PAGE
    assert transient(profile).tolist() == [True, False, True, False, False]
    assert persistent(profile).tolist() == [False, False, False, False, True]


def test_accesses_are_summed_by_position_of_the_lifetime() -> None:
    profile = toy_profile()
    summed = by_position(profile, access_pages(profile))
    assert summed[:, ACTIVATION].tolist() == [2, 0, 2, 0]
    # The gradient is born in stretch 2, which is the first position of its life.
    assert summed[:, GRADIENT].tolist() == [2, 2, 0, 0]
    assert summed[:, PARAMETER].tolist() == [0, 2, 2, 2]
    # An access to the gradient in stretch 0 of the next step, before the gradient's death, is at
    # the gradient's third position.
    profile.accesses["tensor"][0] = GRADIENT
    assert by_position(profile, access_pages(profile))[:, GRADIENT].tolist() == [2, 2, 2, 0]


def test_pages_are_sampled_ones_or_those_that_the_bytes_fill() -> None:
    profile = replace(toy_profile(), source="shim")
    rows = profile.accesses
    rows["pages"] = 77
    rows["bytes_read"][:4] = [1, PAGE + 1, 0, 100 * PAGE]
    rows["bytes_written"][:4] = [0, 0, PAGE, 1]
    assert access_pages(profile)[:4].tolist() == [1, 1, 1, 2]  # not more pages than the tensor has
    assert set(access_pages(replace(profile, source="module+shim"))) == {77}


def test_accesses_are_counted_by_the_module_or_once_per_page() -> None:
    profile = toy_profile()
    profile.accesses["page_accesses"] = 3 * profile.accesses["pages"]
    sampled = replace(profile, source="module+shim")
    assert np.array_equal(access_counts(sampled), 3 * access_pages(sampled))
    reported = replace(profile, source="shim")
    assert np.array_equal(access_counts(reported), access_pages(reported))


@pytest.mark.parametrize(
    ("stretch", "event", "share"),
    [
        (0, 0, 0.0),
        (0, 1, 0.25),
        (0, 3, 0.75),
        (1, 4, 0.0),  # no event in the stretch
        (2, 5, 0.5),
        (2, 6, 1.0),
        (3, 9, 1.0),
        (2, 0, 0.0),
    ],
)
def test_events_are_spread_evenly_over_their_stretch(
    stretch: int, event: int, share: float
) -> None:
    # Stretches begin at the events 0, 4, 4 and 6.
    found = share_passed(toy_profile(), np.array([stretch]), np.array([event]))
    assert found.tolist() == [share]


@given(st.lists(st.sampled_from(range(5)), unique=True), st.integers(1, 6))
def test_chunks_cover_their_tensors_and_share_their_accesses(
    tensors: list[int], chunk_pages: int
) -> None:
    profile = toy_profile()
    items = chunks(profile, np.array(tensors, np.int64), chunk_pages)
    assert items.stretch_count == 4
    assert (items.pages <= chunk_pages).all()
    covered = [
        (int(tensor), int(first) + page)
        for tensor, first, pages in zip(items.tensor, items.first_page, items.pages, strict=True)
        for page in range(int(pages))
    ]
    sizes = tensor_pages(profile)
    assert sorted(covered) == [(t, p) for t in sorted(tensors) for p in range(int(sizes[t]))]
    counted = np.isin(profile.accesses["tensor"], tensors)
    assert items.worth.sum() == pytest.approx(access_pages(profile)[counted].sum())


def test_a_chunk_has_its_tensor_s_lifetime() -> None:
    items = chunks(toy_profile(), np.array([GRADIENT, STATE]), 3)
    assert items.tensor.tolist() == [GRADIENT, STATE, STATE]
    assert items.pages.tolist() == [2, 3, 1]
    assert items.first_page.tolist() == [0, 0, 3]
    assert items.persistent.tolist() == [False, True, True]
    assert items.worth[:, 1].tolist() == [0, 0, 0, 3]
    assert items.stretch_of()[:, 0].tolist() == [2, 3, 0, 1]
    last = items.take(np.array([2, 0]))
    assert last.tensor.tolist() == [STATE, GRADIENT]
    assert last.worth[:, 0].tolist() == [0, 0, 0, 1]
    assert last.stretch_of()[:, 1].tolist() == [2, 3, 0, 1]
