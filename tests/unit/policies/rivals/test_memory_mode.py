# SPDX-License-Identifier: Apache-2.0
"""The direct-mapped cache, checked by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sentineld.model.tiers import Overlap, Tier, Tiers
from sentineld.policies.registry import policy
from sentineld.policies.rivals.memory_mode import MemoryMode, _Cache
from tests.unit.plan.toys import LARGE, PAGE, large_profile


def test_lines_by_hand() -> None:
    cache = _Cache(4)
    # The comments give the cached pages after each call.
    assert cache.access(0, 3, writes=True) == (3, 0)  # pages 0, 1, 2, all dirty; one free line
    assert cache.access(0, 3, writes=False) == (0, 0)
    assert cache.access(4, 2, writes=False) == (2, 2)  # pages 4, 5, 2; one free line
    assert cache.access(0, 2, writes=False) == (2, 0)  # pages 0, 1, 2; one free line
    # Page 3 fills the free line, pages 4, 5 and 6 replace pages 0, 1 and 2, and page 7 replaces
    # page 3. Of the replaced pages, pages 2 and 3 are dirty.
    assert cache.access(3, 5, writes=True) == (5, 2)
    assert cache.access(4, 4, writes=False) == (0, 0)


def test_a_step_that_fits_and_one_that_does_not() -> None:
    profile = large_profile()
    tiers = Tiers((Tier((0,), 0, 8e9, 4e9), Tier((1,), 0, 2e9, 1e9)), 1e9, "toy")
    mode = MemoryMode()
    plan = policy("memory-mode").plan(profile, tiers, PAGE)
    assert mode.steady_step(plan, profile, tiers, 12 * LARGE * PAGE) == (0.0, 0, 0)
    # With 64 lines, a tensor that is larger than the cache evicts parts of itself, and no page is
    # still cached at its next access. So each page access is a miss and fills a line. All pages are
    # dirty, so each is written back when its line is filled again. A step has 19 * 64 - 1 page
    # accesses, because the scratch has 63 pages instead of 64.
    found = mode.steady_step(plan, profile, tiers, LARGE * PAGE)
    size = (19 * LARGE - 1) * PAGE
    assert (found.filled_bytes, found.written_back_bytes) == (size, size)
    assert found.extra_ns == pytest.approx(size * (0.5 + 1.0))


def test_computation_hides_fills() -> None:
    profile = large_profile()
    tiers = Tiers((Tier((0,), 0, 8e9, 4e9), Tier((1,), 0, 2e9, 1e9)), 1e9, "toy")
    hiding = replace(tiers, overlap=Overlap.COMPUTE)
    mode, size = MemoryMode(), (19 * LARGE - 1) * PAGE
    plan = policy("memory-mode").plan(profile, tiers, PAGE)
    assert mode.steady_step(plan, profile, hiding, LARGE * PAGE) == (0.0, size, size)
    # Without computation, all fills and write-backs lengthen the step.
    stretches = profile.stretches.copy()
    stretches["time_ns"] = 1
    bound_by_memory = replace(profile, stretches=stretches)
    found = mode.steady_step(plan, bound_by_memory, hiding, LARGE * PAGE)
    assert found.extra_ns == pytest.approx(size * (0.5 + 1.0))
