# SPDX-License-Identifier: Apache-2.0
"""Latencies under load, checked by hand on a step of two stretches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sentineld.model.profile import Profile
from sentineld.model.tiers import Overlap, Tier, Tiers
from sentineld.model.timing import timing_of
from sentineld.policies.registry import policy
from sentineld.simulate.loaded_latency import LoadedLatencies
from sentineld.simulate.script import scripts
from tests.unit.policies.rivals.laps import PAGE, Life, lap

PAGES = 100
READ_NS = PAGE  # time to read a page of the fast tier, at 1 byte/ns
SLOW_NS = 2 * PAGE  # time to read a page of the slow tier


def latencies(overlap: Overlap) -> LoadedLatencies:
    """Two stretches, of a second each. Both read tensor 0, and only the second reads tensor 1."""
    tiers = Tiers((Tier((0,), 0, 1e9, 1e9), Tier((1,), 0, 0.5e9, 0.5e9)), 1e9, "toy")
    profile: Profile = lap(2, Life(PAGES, (0, 1)), Life(PAGES, (1,)))
    timing = timing_of(replace(tiers, overlap=overlap))
    plan = policy("first-touch").plan(profile, tiers, PAGE)
    return LoadedLatencies(profile, scripts(plan, profile, timing).cells, timing)


def pages(first: int, second: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Numbers of pages of the two cells. Each cell holds one of the two tensors."""
    return np.array([first, second])


def test_an_access_waits_for_half_of_its_tiers_busy_time() -> None:
    found = latencies(Overlap.TIERS)
    # Tensor 0 is fast and tensor 1 slow. The fast tier is busy for the time of 100 reads in each
    # stretch, the slow tier for the time of 100 reads in the second stretch.
    found.passed(0, pages(PAGES, 0), pages(0, PAGES))
    found.passed(1, pages(PAGES, 0), pages(0, PAGES))
    assert found.take() == pytest.approx([PAGES * READ_NS / 2, PAGES * SLOW_NS / 2])
    # Each of the 100 fast accesses of the first stretch waits for half the time of 100 reads, and
    # each of the 200 fast accesses of the second stretch waits for half the time of 200 reads. The
    # slow tier has no accesses, so its latency is that of an idle tier.
    found.passed(0, pages(PAGES, PAGES), pages(0, 0))
    found.passed(1, pages(PAGES, PAGES), pages(0, 0))
    mean = (100 * 100 + 200 * 200) / 300 * READ_NS / 2
    assert found.take() == pytest.approx([mean, SLOW_NS])


@pytest.mark.parametrize("overlap", [Overlap.NONE, Overlap.COMPUTE])
def test_without_overlap_the_load_does_not_matter(overlap: Overlap) -> None:
    found = latencies(overlap)
    found.passed(1, pages(PAGES, PAGES), pages(0, 0))
    assert found.take() == pytest.approx([READ_NS, SLOW_NS])
