# SPDX-License-Identifier: Apache-2.0
"""The best lives of pages on paged tiers: walks through the states dirty, clean and slow.

A fast page is clean if its copy in the file is current. It is clean from its fetch until a stretch
writes to it. A clean page becomes slow without a write to the file. A walk gives the state before
each position, that is, before each stretch of a chunk's lifetime (see Items in plan/items.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sentineld.model.arrays import Floats, Integers, Mask
from sentineld.policies.lp.relax import IMPOSSIBLE

DIRTY, CLEAN, SLOW = range(3)


@dataclass(frozen=True)
class CleanGains:
    """The gains of N chunks: an array (S, N) for each pair of states before and after a position.

    In a position that writes to the chunk, a clean page counts as dirty, and a promoted page
    becomes dirty. Slow chunks that stay slow gain nothing.
    """

    dirty_stays: Floats  # a dirty page stays dirty
    dirty_leaves: Floats  # a dirty page is demoted
    dirty_renews: Floats  # a dirty page is demoted and promoted again, which makes it clean
    clean_stays: Floats  # a clean page stays clean
    clean_leaves: Floats  # a clean page is demoted
    enters: Floats  # a slow page is promoted


@dataclass(frozen=True)
class CleanLives:
    """The best walks of N chunks."""

    value: Floats
    """(N,): the gain of each walk."""

    moving: Mask
    """(S, N): whether the chunk is moved in the position."""

    clean: Mask
    """(N,): whether the chunk is ever demoted while it is clean."""


def best_clean_walks(
    gains: CleanGains, writes: Mask, length: Integers, persistent: Mask
) -> CleanLives:
    """For each chunk, the walk with the largest gain.

    writes: (S, N), whether the position writes to the chunk. length, persistent: (N,), see Items. A
    persistent chunk ends in the state in which it begins; any other chunk begins dirty or slow.
    """
    count, many = writes.shape
    # The largest total gain of the remaining positions. Index: [state in which the life begins,
    # state before the first of these positions, chunk].
    ahead = np.zeros((3, 3, many))
    for first in range(3):
        for last in range(3):
            if first != last:
                ahead[first, last, persistent] = -IMPOSSIBLE
    after = np.zeros((count, 3, 3, many), np.int8)
    for at in range(count - 1, -1, -1):
        steps = _steps(gains, writes, length, persistent, at)
        options = steps[None, :, :, :] + ahead[:, None, :, :]
        after[at] = options.argmax(axis=2)
        ahead = options.max(axis=2)
    # A transient chunk can't be clean at its birth.
    starts = np.stack([ahead[state, state] for state in range(3)])
    starts[CLEAN, ~persistent] = -IMPOSSIBLE
    state = first_state = starts.argmax(axis=0)
    value = starts.max(axis=0)
    moving, clean = np.zeros((count, many), np.bool_), np.zeros(many, np.bool_)
    chunk = np.arange(many)
    for at in range(count):
        following = after[at, first_state, state, chunk].astype(np.int64)
        renewed = (state == DIRTY) & (following == CLEAN)
        moving[at] = ((state == SLOW) != (following == SLOW)) | renewed
        clean |= (state == CLEAN) & (following == SLOW) & ~writes[at] & (at < length)
        state = following
    return CleanLives(value, moving & (np.arange(count)[:, None] < length[None, :]), clean)


def _steps(gains: CleanGains, writes: Mask, length: Integers, persistent: Mask, at: int) -> Floats:
    """(3, 3, N): the gain of each pair of states before and after a position."""
    found = np.full((3, 3, writes.shape[1]), -IMPOSSIBLE)
    wrote = writes[at]
    found[DIRTY, DIRTY] = gains.dirty_stays[at]
    found[DIRTY, SLOW] = gains.dirty_leaves[at]
    found[DIRTY, CLEAN] = np.where(wrote, -IMPOSSIBLE, gains.dirty_renews[at])
    found[CLEAN, CLEAN] = np.where(wrote, -IMPOSSIBLE, gains.clean_stays[at])
    found[CLEAN, DIRTY] = np.where(wrote, gains.dirty_stays[at], -IMPOSSIBLE)
    found[CLEAN, SLOW] = np.where(wrote, gains.dirty_leaves[at], gains.clean_leaves[at])
    found[SLOW, CLEAN] = np.where(wrote, -IMPOSSIBLE, gains.enters[at])
    found[SLOW, DIRTY] = np.where(wrote, gains.enters[at], -IMPOSSIBLE)
    found[SLOW, SLOW] = 0.0
    # A transient chunk dies in its last position, so a change of tier there would be useless.
    # After its life a chunk keeps its state and gains nothing.
    ended = at >= length
    fixed = ended | ((at == length - 1) & ~persistent)
    for before in range(3):
        for after in range(3):
            if (before == SLOW) != (after == SLOW):
                found[before, after, fixed] = -IMPOSSIBLE
            found[before, after, ended] = 0.0 if before == after else -IMPOSSIBLE
    return found
