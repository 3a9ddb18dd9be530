# SPDX-License-Identifier: Apache-2.0
"""The step-time bound with recomputation, checked by hand; it is below every simulated step."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sentineld.base.errors import SentinelError
from sentineld.host.presets import preset_tiers
from sentineld.policies.bounds import recompute
from sentineld.policies.bounds.recompute import recompute_bound
from sentineld.policies.bounds.step_time import bound_seconds
from sentineld.policies.recompute.candidates import candidates
from sentineld.policies.recompute.rewrite import recomputed
from sentineld.policies.registry import policy
from sentineld.simulate.simulate import simulate
from tests.conftest import examples
from tests.unit.policies.recompute.test_candidates import OF_X, OF_Y
from tests.unit.policies.recompute.test_rewrite import any_of
from tests.unit.policies.recompute.toys import UNIT, layered_profile
from tests.unit.policies.tiering import VARIANTS, tiers
from tests.unit.workloads import Network, profiled

SLOW_S = 1.125e-9 * UNIT
"""Extra seconds of a step in which z or g is slow: each byte is written once, which takes 0.75 ns
longer in slow memory, and read once, which takes 0.375 ns longer."""


def test_the_cheaper_of_a_slow_tensor_and_a_recomputation_is_bounded() -> None:
    # Five tensors are alive in stretch 4. There is room for four of them, and nothing can move. So
    # one of them is slow for its whole life, or y is dropped and computed again in 10 us. Computing
    # x again would take 1 ms. These are the times of stretches 2 and 1 (TIMES_NS in toys.py).
    profile, budget = layered_profile(), 4 * UNIT
    step_s = profile.step_ns / 1e9
    none, expensive, both = (
        recompute_bound(profile, tiers(0.0), budget, chosen)
        for chosen in ([], [OF_X], [OF_X, OF_Y])
    )
    assert none.seconds - step_s == pytest.approx(SLOW_S, rel=2e-3)
    assert expensive.seconds - step_s == pytest.approx(SLOW_S, rel=2e-3)
    assert expensive.taken.tolist() == pytest.approx([0.0])
    assert both.seconds - step_s == pytest.approx(10e-6, rel=2e-3)
    assert both.taken.tolist() == pytest.approx([0.0, 1.0])
    assert both.gains_ns[1] >= 0 > both.gains_ns[0]


def test_a_share_of_a_recomputation_makes_a_share_of_its_room() -> None:
    profile = layered_profile()
    step_s = profile.step_ns / 1e9
    found = recompute_bound(profile, tiers(0.0), 4 * UNIT + UNIT // 2, [OF_Y])
    assert found.seconds - step_s == pytest.approx(5e-6, rel=2e-3)
    assert found.taken.tolist() == pytest.approx([0.5])


@pytest.mark.parametrize("variant", [name for name in VARIANTS if name != "plain"])
def test_under_other_variants_it_is_the_step_time_bound(variant: str) -> None:
    profile, budget = layered_profile(), 4 * UNIT
    found = replace(tiers(100.0), **VARIANTS[variant])
    bound = recompute_bound(profile, found, budget, [OF_Y])
    assert bound.seconds == bound_seconds(profile, found, budget)
    assert bound.taken.tolist() == [0.0]


@settings(max_examples=examples(ci=8, long=400))
@given(
    st.integers(1, 4),
    st.integers(16, 80),
    st.integers(16, 80),
    st.floats(0.05, 1.2),
    st.sampled_from(["cxl", "optane", "dram", "nvme"]),
    st.sampled_from(["auto", "first-touch", "g10+slow"]),
    st.integers(0, 1000),
)
def test_no_step_with_candidates_recomputed_is_faster(
    blocks: int,
    weight_pages: int,
    activation_pages: int,
    share: float,
    preset: str,
    name: str,
    seed: int,
) -> None:
    network = Network.of_pages(blocks, weight_pages, activation_pages, 2e9)
    profile = profiled(network, (3, 7, 12, 20))[0]
    every, found = candidates(profile), preset_tiers(preset, 1)
    budget = int(profile.peak_bytes * share)
    least = recompute_bound(profile, found, budget, every).seconds
    for chosen in ([], any_of(profile, seed)):
        step = recomputed(profile, chosen)
        try:
            outcome = simulate(step, policy(name), found, budget, steps_max=30)
        except SentinelError as error:
            if "infeasible" not in error.message:
                raise
            continue
        assert least <= outcome.step_seconds * (1 + 1e-6)
    assert least >= profile.step_ns / 1e9 * (1 - 1e-9)


def test_the_bound_of_the_last_solved_program_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(recompute, "solve", lambda *_: None)
        with pytest.raises(SentinelError, match="was not solved"):
            recompute_bound(layered_profile(), tiers(0.0), 4 * UNIT, [OF_Y])
