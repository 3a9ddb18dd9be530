# SPDX-License-Identifier: Apache-2.0
"""Pages that the module could not watch may have been accessed, so they can count as accessed."""

from __future__ import annotations

import numpy as np
import pytest

from sentineld.model.records import (
    ACCESS_AGAIN,
    ACCESS_UNKNOWN,
)
from sentineld.plan.items import access_pages
from sentineld.profile.attribution import build_profile
from tests.unit.profile.attributed import op, rows, samples, two_stretches
from tests.unit.trainer import PAGE


@pytest.mark.parametrize(
    ("unknown", "page_count"),
    [
        ((), 0),  # both pages were watched: the operator uses only the tensor's shape
        (((16, 5, ACCESS_UNKNOWN),), 1),
        (((17, 5, ACCESS_UNKNOWN), (16, 5, ACCESS_UNKNOWN)), 2),
        (((18, 5, ACCESS_UNKNOWN), (15, 5, ACCESS_UNKNOWN)), 0),  # pages of B and of no tensor
        (((16, 6, ACCESS_UNKNOWN),), 0),  # another stretch
        (((16, 4, ACCESS_UNKNOWN), (16, 7, ACCESS_UNKNOWN)), 0),  # other steps
    ],
)
def test_an_unknown_page_does_not_count_as_not_accessed(
    unknown: tuple[tuple[int, int, int], ...], page_count: int
) -> None:
    # stretch 0: an operator reads A, which occupies pages 16 and 17 (see two_stretches())
    seen = samples((18, 6, 0), *unknown)
    profile = build_profile(two_stretches(), seen, op(125, 16, 2 * PAGE), [""])
    assert rows(profile) == [(0, 0, 2 * PAGE, 0, page_count), (1, 1, PAGE, 0, 1)]
    assert access_pages(profile).tolist() == [page_count, 1]
    assert profile.accesses["page_accesses"].tolist() == [page_count, 1]


def test_unknown_pages_add_to_the_sampled_ones_no_more_than_the_reported_bytes() -> None:
    unknown = ((17, 5, ACCESS_UNKNOWN), (17, 5, ACCESS_UNKNOWN))
    seen = samples((16, 5, 0), (16, 5, ACCESS_AGAIN), *unknown)
    for size, page_count in ((100, 1), (2 * PAGE, 2), (50 * PAGE, 2)):
        profile = build_profile(two_stretches(), seen, op(125, 16, size), [""])
        assert rows(profile) == [(0, 0, size, 0, page_count)]
        assert profile.accesses["page_accesses"].tolist() == [page_count + 1]


def test_a_later_write_that_was_missed_is_not_another_page() -> None:
    seen = samples((16, 5, 0), (16, 5, ACCESS_UNKNOWN | ACCESS_AGAIN))
    profile = build_profile(two_stretches(), seen, op(125, 16, 2 * PAGE), [""])
    assert rows(profile) == [(0, 0, 2 * PAGE, 0, 1)]


def test_if_samples_are_missing_the_reported_bytes_count() -> None:
    seen = samples((17, 5, 0), (18, 6, 0))
    ops = np.concatenate([op(125, 16, 2 * PAGE), op(165, 16, 100)])
    profile = build_profile(two_stretches(), seen, ops, [""], incomplete=True)
    # A in stretch 0, B and C in stretch 1. Only the module saw the access to B.
    assert rows(profile) == [(0, 0, 2 * PAGE, 0, 2), (1, 1, PAGE, 0, 1), (1, 2, 100, 0, 1)]
