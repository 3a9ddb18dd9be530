# SPDX-License-Identifier: Apache-2.0
"""The residency of a plan made by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sentineld.base.errors import SentinelError
from sentineld.model.plan import MOVE_DTYPE, Space
from sentineld.plan.predict import predicted
from sentineld.plan.residency import (
    ABSENT,
    peak_fast_pages,
    residency,
    served_pages,
)
from tests.unit.plan.toys import PAGE, toy_plan, toy_profile, two_tiers
from tests.unit.plan.turning import step


def test_tiers_of_the_toy() -> None:
    plan, profile = toy_plan(), toy_profile()
    found = residency(plan, profile)
    by_piece = {
        (int(t), int(f)): found.tier[:, at].tolist()
        for at, (t, f) in enumerate(zip(found.tensor, found.first_page, strict=True))
    }
    gone = ABSENT
    assert by_piece == {
        (0, 0): [0, 0, 0, gone],
        (1, 0): [0, gone, gone, gone],
        (2, 0): [1, gone, 1, 1],
        (3, 0): [0, 1, 1, 0],  # the half of the state that moves
        (3, 2): [1, 1, 1, 1],
        (4, 0): [0, 0, 0, 0],
    }


def test_served_pages_of_the_toy() -> None:
    plan, profile = toy_plan(), toy_profile()
    worth, served = served_pages(profile, residency(plan, profile))
    # Accesses, in order, to: activation, scratch, parameter, activation, gradient, parameter,
    # gradient, state, parameter.
    assert worth.tolist() == [2, 1, 2, 2, 2, 2, 2, 4, 2]
    assert served.tolist() == [2, 1, 2, 2, 0, 2, 0, 2, 2]
    expected = predicted(plan, profile, two_tiers())
    assert expected.fast_share == pytest.approx(13 / 19)
    assert expected.peak_fast_bytes == 7 * 4096
    assert (expected.promoted_bytes, expected.demoted_bytes) == (2 * 4096, 2 * 4096)
    # 6 of the 19 page accesses are slow, but they take no extra time, because small tensors count
    # as cached.
    assert expected.step_ns == 4_000_000_000


def test_a_move_at_a_birth_moves_only_the_pages_previous_tensor() -> None:
    # Both tensors use the slow pages 6-7. The first one dies and the second one is born in stretch
    # 1. The pages are promoted at boundary 1, where this stretch begins.
    #
    # stretch      0  1  2     s: alive, on slow pages
    # tensor 0     s  s
    # tensor 1        s  s
    plan, profile = step([(6, 2, 0, 2, True), (6, 2, 3, 5, True)])
    promotion = np.array([(1, 1, 0, Space.ARENA, 0, 6 * PAGE, 2 * PAGE)], MOVE_DTYPE)
    found = residency(replace(plan, moves=promotion), profile)
    assert found.tier.T.tolist() == [[1, 1, ABSENT], [ABSENT, 1, 1]]
    assert found.moving.T.tolist() == [[False, True, False], [False, False, False]]
    assert found.end_tier.tolist() == [0, 1]


def test_tensors_that_use_a_page_in_turn_count_once() -> None:
    # Both tensors use the fast pages 0-1 in stretch 0. Tensor 0 dies at event 0; it was born at
    # event 3 of the previous step. Tensor 1 lives from event 1 to event 2.
    plan, profile = step([(0, 2, 3, 0, True), (0, 2, 1, 2, True)], per_stretch=4)
    found = residency(plan, profile)
    assert peak_fast_pages(plan, profile, found).tolist() == [2]


def test_a_move_without_a_tensor_is_rejected() -> None:
    plan = toy_plan()
    moves = plan.moves.copy()
    moves["offset"][0] = 40 * 4096
    with pytest.raises(SentinelError, match="hold no tensor"):
        residency(replace(plan, moves=moves), toy_profile())


def test_without_module_samples_pages_are_derived_from_bytes() -> None:
    profile = replace(toy_profile(), source="shim")
    rows = profile.accesses.copy()
    rows["pages"] = 0
    worth, _ = served_pages(replace(profile, accesses=rows), residency(toy_plan(), profile))
    assert np.array_equal(worth, [2, 1, 2, 2, 2, 2, 2, 4, 2])
