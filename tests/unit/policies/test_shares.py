# SPDX-License-Identifier: Apache-2.0
"""The part of a budget that plans use."""

from __future__ import annotations

import pytest

from sentineld.policies.shares import usable_pages


@pytest.mark.parametrize(
    ("budget_bytes", "pages"), [(4095, 0), (4096, 1), (499 * 4096, 499), (1000 * 4096 + 1, 998)]
)
def test_a_small_share_of_the_whole_pages_stays_free(budget_bytes: int, pages: int) -> None:
    assert usable_pages(budget_bytes, 4096) == pages
