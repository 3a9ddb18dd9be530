# SPDX-License-Identifier: Apache-2.0
"""Resident bytes of the toy profile's tensors by layer and tier."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sentineld.model.plan import Space
from sentineld.model.profile import Profile
from sentineld.model.protocol import Boundary
from sentineld.plan.by_layer import LayerBytes, PageTiers, bytes_by_layer
from sentineld.plan.residency import ABSENT
from tests.unit.plan.toys import PAGE, toy_plan, toy_profile


def tiers(stretch: int, arena: list[int], heap: list[int]) -> PageTiers:
    of_space = {Space.ARENA: np.array(arena, np.uint8), Space.HEAP: np.array(heap, np.uint8)}
    return PageTiers(stretch, of_space)


def by_layer(pages: PageTiers) -> dict[str, tuple[int, ...]]:
    """For each layer, the number of pages on each tier."""
    rows, _ = bytes_by_layer(toy_plan(), toy_profile(), pages, 2)
    return {row.layer: tuple(size // PAGE for size in row.bytes_by_tier) for row in rows}


def others(pages: PageTiers, profile: Profile | None = None) -> list[int]:
    return bytes_by_layer(toy_plan(), profile or toy_profile(), pages, 2)[1]


def test_live_tensors_count_for_the_layer_of_their_birth_or_first_access() -> None:
    # In stretch 1 the scratch tensor is dead, but its page stays in the pool.
    pages = tiers(1, [0, 0, 0, ABSENT, ABSENT], [1, 1, 1, 0, 0, 0])
    assert list(by_layer(pages).items()) == [
        ("(step begin)", (2, 0)),  # the activation
        ("block", (2, 0)),  # the parameter
        ("(optimizer)", (1, 3)),  # the state
    ]
    assert others(pages) == [PAGE, 0]


def test_forward_and_backward_of_a_module_are_one_layer() -> None:
    pages = tiers(2, [0, 0, 0, 1, 1], [1, 1, 1, 1, 0, 0])
    assert by_layer(pages)["block"] == (2, 2)  # parameter and gradient


def test_absent_pages_and_pages_outside_the_maps_count_nothing() -> None:
    pages = tiers(1, [ABSENT] * 5, [ABSENT] * 4)
    assert by_layer(pages) == {}
    assert others(pages) == [0, 0]


def test_a_page_that_two_layers_share_is_subtracted_once_from_the_other_pages() -> None:
    profile = toy_profile()
    profile.tensors["address"][4] = profile.tensors["address"][3]  # parameter and state
    pages = tiers(1, [ABSENT] * 5, [0] * 6)
    rows, _ = bytes_by_layer(toy_plan(), profile, pages, 2)
    assert rows == [LayerBytes("block", (2 * PAGE, 0)), LayerBytes("(optimizer)", (4 * PAGE, 0))]
    assert others(pages, profile) == [2 * PAGE, 0]


def test_a_cut_continues_the_stretch_before_it() -> None:
    profile = toy_profile()
    profile.stretches["kind"][3] = Boundary.CUT
    pages = tiers(1, [ABSENT] * 5, [1, 1, 1, 1, ABSENT, ABSENT])
    (row,), _ = bytes_by_layer(toy_plan(), profile, pages, 2)
    assert row == LayerBytes("block", (0, 4 * PAGE))


def test_a_tensor_without_accesses_counts_for_no_layer() -> None:
    profile = replace(toy_profile(), accesses=toy_profile().accesses[:0])
    pages = tiers(1, [ABSENT] * 5, [0] * 6)
    assert bytes_by_layer(toy_plan(), profile, pages, 2)[0] == []
    assert others(pages, profile) == [6 * PAGE, 0]
