# SPDX-License-Identifier: Apache-2.0
"""Coverage of the toy step, counted by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sentineld.profile.coverage import coverage
from tests.unit.plan.toys import PAGE, toy_profile


def test_attributed_pages_by_kind() -> None:
    # Accessed pages (see toy_profile()): activation 2 + 2, scratch 1, gradient 2 + 2, state 4,
    # parameter 2 + 2 + 2.
    found = coverage(replace(toy_profile(), unattributed_pages=1, untold_pages=7))
    assert found.by_kind == {"activation": 4, "scratch": 1, "gradient": 4, "persistent": 10}
    assert (found.attributed_pages, found.unattributed_pages, found.untold_pages) == (19, 1, 7)
    assert found.attributed_share == pytest.approx(19 / 20)
    assert found.source == "module"


def test_tensors_without_accesses_are_counted_with_their_bytes() -> None:
    profile = toy_profile()
    rows = profile.accesses
    found = coverage(replace(profile, accesses=rows[(rows["tensor"] != 3) & (rows["tensor"] != 1)]))
    assert (found.untouched_tensors, found.untouched_bytes) == (2, 4 * PAGE + PAGE - 100)
    assert coverage(profile).untouched_tensors == 0


def test_without_samples_the_share_is_whole() -> None:
    profile = toy_profile()
    found = coverage(replace(profile, accesses=profile.accesses[:0]))
    assert found.attributed_share == 1.0
    assert found.untouched_tensors == 5


def test_as_json_it_has_the_share() -> None:
    values = coverage(replace(toy_profile(), unattributed_pages=19)).to_json()
    assert values["attributed_share"] == 0.5
    assert values["by_kind"]["persistent"] == 10
