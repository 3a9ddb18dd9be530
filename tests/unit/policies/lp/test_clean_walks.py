# SPDX-License-Identifier: Apache-2.0
"""best_clean_walks() finds the best of all walks through the states dirty, clean and slow."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sentineld.policies.lp.clean_walks import (
    CLEAN,
    DIRTY,
    SLOW,
    CleanGains,
    best_clean_walks,
)

NAMES = {
    (DIRTY, DIRTY): "dirty_stays",
    (DIRTY, SLOW): "dirty_leaves",
    (DIRTY, CLEAN): "dirty_renews",
    (CLEAN, CLEAN): "clean_stays",
    (CLEAN, SLOW): "clean_leaves",
    (SLOW, CLEAN): "enters",
}


def gain(gains: CleanGains, before: int, after: int, wrote: bool, at: int) -> float | None:
    """The gain of a change between two states at a position. None: the change is impossible."""
    if (before, after) == (SLOW, SLOW):
        return 0.0
    if wrote:
        # The page cannot be clean after a stretch that writes to it. If it was clean before, the
        # gain is the same as if it had been dirty before.
        if after == CLEAN:
            return None
        if before == SLOW:
            return float(gains.enters[at, 0])
        before = DIRTY
    name = NAMES.get((before, after))
    return None if name is None else float(getattr(gains, name)[at, 0])


def best(gains: CleanGains, writes: list[bool], persistent: bool) -> float:
    """The largest sum of gains along any walk. A walk gives the page's state before each position
    of its life and after the last one."""
    length = len(writes)
    found = -np.inf
    for walk in product((DIRTY, CLEAN, SLOW), repeat=length + 1):
        if persistent and walk[0] != walk[-1]:
            continue
        if not persistent and (walk[0] == CLEAN or (walk[-2] == SLOW) != (walk[-1] == SLOW)):
            continue
        parts = [gain(gains, walk[at], walk[at + 1], writes[at], at) for at in range(length)]
        if None not in parts:
            found = max(found, sum(part for part in parts if part is not None))
    return float(found)


@settings(deadline=None)
@given(
    st.lists(st.booleans(), min_size=1, max_size=5),
    st.booleans(),
    st.integers(0, 2),
    st.integers(0, 1 << 30),
)
def test_no_walk_is_better(writes: list[bool], persistent: bool, more: int, seed: int) -> None:
    # The `more` positions after the life must not change the result.
    random = np.random.default_rng(seed)
    count = len(writes) + more
    tables = [random.normal(size=(count, 1)) for _ in range(6)]
    gains = CleanGains(*tables)
    table = np.array([*writes, *[False] * more])[:, None]
    found = best_clean_walks(gains, table, np.array([len(writes)]), np.array([persistent]))
    assert float(found.value[0]) == pytest.approx(best(gains, writes, persistent))
    assert not found.moving[len(writes) :].any()


def test_a_page_that_is_only_read_is_fetched_and_leaves_without_a_move() -> None:
    # Positions 1 and 3 use the page. Room at position 2 is expensive, and so is the demotion of a
    # dirty page.
    cost, none = np.array([[0.0], [9.0], [0.0], [9.0]]), np.zeros((4, 1))
    room, move = np.array([[0.0], [0.0], [50.0], [0.0]]), 3.0
    gains = CleanGains(
        dirty_stays=cost - room,
        dirty_leaves=cost - room - 10 * move,
        dirty_renews=none - 100,
        clean_stays=cost - room,
        clean_leaves=cost - room,
        enters=none - move,
    )
    lasts, length = np.array([True]), np.array([4])
    reads = best_clean_walks(gains, np.zeros((4, 1), np.bool_), length, lasts)
    # The page is demoted in position 1, promoted in position 2, and stays fast until position 1 of
    # the next step.
    assert float(reads.value[0]) == pytest.approx(18.0 - move)
    assert reads.clean[0]
    writes = best_clean_walks(gains, np.array([[False], [True], [False], [True]]), length, lasts)
    assert not writes.clean[0]
    assert float(writes.value[0]) == 0.0
