# SPDX-License-Identifier: Apache-2.0
"""Every policy makes a valid plan for any profile, or says that the budget is too small."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sentineld.base.errors import SentinelError
from sentineld.host.presets import preset_tiers
from sentineld.model.profile import Profile
from sentineld.model.protocol import Placement
from sentineld.plan.check import verify
from sentineld.plan.placement import planned
from sentineld.policies.registry import names, policy
from sentineld.profile.lifetimes import peak_bytes
from tests.conftest import examples
from tests.unit.policies.random_profiles import random_profile, random_profiles

MAY_FAIL = ("infeasible", "the profile holds no accesses", "the script has placed")
"""Parts of the messages of errors that a policy may raise for a random profile and budget."""


@pytest.mark.parametrize("name", names())
@settings(max_examples=examples(ci=4, long=100))
@given(
    profile=random_profiles(tensors_max=150),
    share=st.sampled_from([0.02, 0.1, 0.2, 0.4, 0.9]),
    preset=st.sampled_from(["cxl", "optane", "nvme"]),
)
# In these examples, a tensor is born in some stretch and dies in the same stretch of the next step.
# So this stretch needs room for two tensors: the one of the previous step and the one of this step.
@example(profile=random_profile(1034457690, 61, 11), share=0.02, preset="cxl")
@example(profile=random_profile(81841045, 106, 40), share=0.1, preset="nvme")
def test_a_plan_is_valid(name: str, profile: Profile, share: float, preset: str) -> None:
    chosen, tiers = policy(name), preset_tiers(preset, 1)
    budget_bytes = int(profile.peak_bytes * share)
    try:
        plan = chosen.plan(profile, tiers, budget_bytes)
    except SentinelError as error:
        if any(text in error.message for text in MAY_FAIL):
            return
        raise
    verify(plan, profile, budget_bytes if chosen.charges_budget else None)


@pytest.mark.parametrize("name", names())
@settings(max_examples=examples(ci=4, long=100))
@given(
    profile=random_profiles(tensors_max=150),
    seed=st.integers(0, 1000),
    share=st.sampled_from([0.1, 0.4, 0.9]),
    preset=st.sampled_from(["cxl", "nvme"]),
)
def test_a_plan_keeps_placed_tensors_on_their_tiers(
    name: str, profile: Profile, seed: int, share: float, preset: str
) -> None:
    chosen, tiers = policy(name), preset_tiers(preset, 1)
    profile = randomly_placed(profile, seed)
    budget_bytes = int(profile.peak_bytes * share)
    try:
        plan = planned(chosen, profile, tiers, budget_bytes)
    except SentinelError as error:
        if any(text in error.message for text in MAY_FAIL):
            return
        raise
    assert plan.budget_bytes == budget_bytes
    assert len(plan.reasons) == len(profile.tensors)
    verify(plan, profile, budget_bytes if chosen.charges_budget else None)


@pytest.mark.parametrize("name", names())
@settings(max_examples=examples(ci=2, long=50))
@given(
    profile=random_profiles(tensors_max=100),
    seed=st.integers(0, 1000),
    preset=st.sampled_from(["cxl", "nvme"]),
)
def test_tensors_of_0_bytes_do_not_make_a_plan_invalid(
    name: str, profile: Profile, seed: int, preset: str
) -> None:
    chosen, tiers = policy(name), preset_tiers(preset, 1)
    profile = some_emptied(profile, seed)
    budget_bytes = int(profile.peak_bytes * 0.3)
    try:
        plan = chosen.plan(profile, tiers, budget_bytes)
    except SentinelError as error:
        if any(text in error.message for text in MAY_FAIL):
            return
        raise
    verify(plan, profile, budget_bytes if chosen.charges_budget else None)


def some_emptied(profile: Profile, seed: int) -> Profile:
    """The profile with a third of its tensors emptied: 0 bytes, and no accesses."""
    tensors = profile.tensors.copy()
    empty = np.random.default_rng(seed).random(len(tensors)) < 1 / 3
    tensors["bytes"][empty] = 0
    return replace(
        profile,
        tensors=tensors,
        accesses=profile.accesses[~empty[profile.accesses["tensor"]]],
        peak_bytes=peak_bytes(tensors, profile.event_count, profile.page_bytes),
    )


def randomly_placed(profile: Profile, seed: int) -> Profile:
    """The profile with some tensors placed on each tier."""
    random, tensors = np.random.default_rng(seed), profile.tensors.copy()
    tensors["placed"] = random.choice(list(Placement), len(tensors), p=[0.6, 0.15, 0.25])
    return replace(profile, tensors=tensors)
