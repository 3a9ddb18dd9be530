# SPDX-License-Identifier: Apache-2.0
"""Tensors are populated at birth if their pages were dropped before and all bytes are written."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sentineld.model.plan import SLOT_POPULATE, Layout
from sentineld.model.profile import ACCESS_DTYPE, Profile
from sentineld.plan.populate import PAGES_MIN, THREADS_MAX, populated
from tests.unit.plan.turning import step

LARGE = 2 * PAGES_MIN


def asked(layout: Layout) -> list[bool]:
    return [bool(flags & SLOT_POPULATE) for flags in layout.slots["flags"]]


def written(profile: Profile, share: float = 1.0) -> Profile:
    rows = np.zeros(len(profile.tensors), ACCESS_DTYPE)
    rows["tensor"] = np.arange(len(rows))
    rows["bytes_written"] = profile.tensors["bytes"] * share
    return replace(profile, accesses=rows)


def test_dropped_pages_are_populated_at_the_next_birth() -> None:
    # The first two tensors use the same pages, some of which are fast. Only the second tensor's
    # death drops these pages. The third tensor is small.
    lives = [
        (0, LARGE, 0, 1, False),
        (0, LARGE, 2, 3, True),
        (LARGE, PAGES_MIN - 1, 4, 5, True),
    ]
    plan, profile = step(lives)
    whole = written(profile)
    assert asked(populated(plan.layout, whole, 1)) == [True, False, False]
    assert asked(populated(plan.layout, whole, THREADS_MAX + 1)) == [False] * 3
    # If a partly written tensor were populated, pages that are never touched would be resident.
    assert asked(populated(plan.layout, written(profile, 0.5), 1)) == [False] * 3
    assert not any(asked(plan.layout))


def test_kept_pages_are_not_populated() -> None:
    plan, profile = step([(0, LARGE, 0, 1, False), (0, LARGE, 2, 3, False)])
    assert asked(populated(plan.layout, written(profile), 1)) == [False, False]
