# SPDX-License-Identifier: Apache-2.0
"""Resident and dropped pages, compared with a model that tracks every page."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given

from sentineld.model.plan import (
    Plan,
)
from sentineld.model.profile import Profile
from sentineld.plan.residency import peak_fast_pages, residency
from sentineld.plan.turnover import first_moments, turnover
from tests.unit.plan.turning import resident, steps


@given(steps())
def test_pages_count_from_birth_to_drop(one: tuple[Plan, Profile]) -> None:
    plan, profile = one
    there, born = resident(plan, profile)
    first = first_moments(profile)
    fullest = [max(there[low:high]) for low, high in pairwise(first)]
    assert peak_fast_pages(plan, profile, residency(plan, profile)).tolist() == fullest
    assert turnover(plan.layout, profile).births(profile).sum() == born
