# SPDX-License-Identifier: Apache-2.0
"""When a spare plan fits the measurements."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sentineld.plan.correct import Correction
from sentineld.plan.spare import SPARE_SHARE, Spare, measures_moves, with_share
from tests.unit.plan.toys import toy_plan, toy_profile, two_tiers

NOMINAL = two_tiers(1000.0)
SPARE = Spare(toy_plan(), with_share(NOMINAL, SPARE_SHARE), up_to_bytes_per_s=650.0)


def measured(bytes_per_s: float, cause: str = "migration") -> Correction:
    return Correction(toy_profile(), two_tiers(bytes_per_s), cause, "text")


@pytest.mark.parametrize("bytes_per_s", [650.0, 500.0, 10.0])
def test_it_answers_up_to_its_bandwidth_with_its_own_tiers(bytes_per_s: float) -> None:
    correction = measured(bytes_per_s)
    answer = SPARE.answer(correction)
    assert answer is not None
    assert answer.tiers.migration_bytes_per_s == 500.0
    assert answer.profile is correction.profile
    assert (answer.cause, answer.text) == (correction.cause, correction.text)


def test_more_bandwidth_needs_a_new_plan() -> None:
    assert SPARE.answer(measured(651.0)) is None


def test_other_stretch_times_need_a_new_plan() -> None:
    assert SPARE.answer(measured(500.0, "times")) is None


def test_a_share_of_the_bandwidth_changes_nothing_else() -> None:
    quarter = with_share(NOMINAL, 0.25)
    assert quarter.migration_bytes_per_s == 250.0
    assert (quarter.tiers, quarter.source) == (NOMINAL.tiers, NOMINAL.source)


def test_a_spare_plan_is_used_only_if_moves_are_measured() -> None:
    plan = toy_plan()
    assert measures_moves(plan, NOMINAL)
    assert not measures_moves(replace(plan, moves=plan.moves[:0]), NOMINAL)
    assert not measures_moves(plan, replace(NOMINAL, paged=True))
