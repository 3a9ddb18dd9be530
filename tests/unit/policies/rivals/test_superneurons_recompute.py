# SPDX-License-Identifier: Apache-2.0
"""Policy `superneurons+recompute`: which outputs it computes again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sentineld.model.protocol import Boundary
from sentineld.plan.policy import Rewriting
from sentineld.policies.recompute.candidates import Recomputation
from sentineld.policies.registry import policy
from sentineld.policies.rivals import superneurons_recompute
from sentineld.policies.rivals.passes import layers_of
from sentineld.policies.rivals.superneurons_recompute import (
    chosen_for,
    largest_need_bytes,
    segments_of,
)
from sentineld.simulate.simulate import simulate
from tests.unit.policies.recompute.test_candidates import OF_Y
from tests.unit.policies.recompute.toys import UNIT, W, X, Y, layered_profile
from tests.unit.policies.rivals.passes import passes
from tests.unit.policies.tiering import tiers

WHOLE = Recomputation(2, 3, 5, ((Y, 3),), frozenset({X, W}), 60_000)
"""The recomputation of a whole segment. A segment consists of the layers between two heavy ones;
here, it has the layers b and c, which follow the heavy layer a."""


def test_a_small_segment_is_executed_again_as_a_whole() -> None:
    profile = layered_profile()
    layers = layers_of(profile)
    assert segments_of(layers) == [[2, 3]]
    # The backward pass of layer b reads x, y and W.
    assert largest_need_bytes(profile, layers) == 3 * UNIT
    assert chosen_for(profile, tiers(100.0), 4 * UNIT) == (WHOLE,)


def test_every_forward_pass_has_segments() -> None:
    layers = replace(layers_of(passes(times=2)), heavy=np.zeros(26, np.bool_))
    assert segments_of(layers) == [list(range(1, 7)), list(range(13, 19))]


def test_the_optimizer_is_no_layer_of_the_backward_pass() -> None:
    profile = layered_profile()
    (optimizer,) = np.flatnonzero(profile.stretches["kind"] == Boundary.OPTIMIZER)
    more = profile.accesses[:4].copy()
    more["stretch"], more["tensor"] = optimizer, range(4)
    changed = replace(profile, accesses=np.concatenate([profile.accesses, more]))
    layers = layers_of(changed)
    assert largest_need_bytes(changed, layers) == largest_need_bytes(profile, layers)


def test_in_a_large_segment_each_output_is_computed_for_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(superneurons_recompute, "largest_need_bytes", lambda *_: UNIT - 1)
    assert chosen_for(layered_profile(), tiers(100.0), 4 * UNIT) == (OF_Y,)


def test_without_a_lack_of_memory_nothing_is_computed_again() -> None:
    profile, mine = layered_profile(), policy("superneurons+recompute")
    assert isinstance(mine, Rewriting)
    assert mine.rewritten(profile, tiers(100.0), 5 * UNIT).profile is profile


def test_the_recomputation_lengthens_the_step_and_the_bound_is_below_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # If largest_need_bytes() returns 0, the segment (layers b and c; see WHOLE) counts as large, so
    # only layer b is executed again. Executing the whole segment again would also make a second z,
    # for which the budget has no room.
    monkeypatch.setattr(superneurons_recompute, "largest_need_bytes", lambda *_: 0)
    profile, mine = layered_profile(), policy("superneurons+recompute")
    assert isinstance(mine, Rewriting)
    budget = 4 * UNIT + UNIT // 2
    found = simulate(profile, mine, tiers(100.0), budget)
    # Without recomputation, x, y, z, g and W would be alive at the same time in stretch 4. With
    # recomputation, y is not alive there. In stretch 5, z is dead, so the second y and the second
    # scratch tensor have room beside x, g and W. So all memory is fast, and the step becomes longer
    # only by the second execution of layer b, which takes 10 us (TIMES_NS in toys.py).
    assert found.step_seconds - found.fast_only_seconds == pytest.approx(10e-6, rel=1e-6)
    assert mine.bound_seconds(profile, tiers(100.0), budget) <= found.step_seconds
