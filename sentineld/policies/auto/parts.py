# SPDX-License-Identifier: Apache-2.0
"""From a fluid to pages: parts of tensors, and where each is in every stretch.

A group's pages stand in a row, tensor behind tensor; where f of them are fast, it
is the first f. So what the program says is carried out to the page, and nothing
moves that need not.
"""

from __future__ import annotations

import numpy as np

from sentineld.model.arrays import Floats, Integers
from sentineld.plan.items import Items
from sentineld.plan.lives import Lives
from sentineld.plan.residency import ABSENT, Residency
from sentineld.policies.lp.groups import Groups

GRAIN_SHARE = 1 / 128
"""Of a group's pages: how many of them are fast is rounded down to a multiple, so that its parts
are few."""

GRAIN_PAGES = 16
"""The least multiple, and of how many pages of a tensor parts are: 64 KiB of small pages, so that
these may be a huge page (plan/huge.py)."""


def levels(groups: Groups, fast_pages: Floats) -> Integers:
    """(S, G): whole pages, rounded down to multiples of a grain, but for whole groups."""
    grain = np.maximum(np.ceil(groups.pages * GRAIN_SHARE), GRAIN_PAGES).astype(np.int64)
    grain = np.minimum(grain, np.maximum(groups.pages, 1))
    whole = np.floor(fast_pages + 1e-3).astype(np.int64)
    found: Integers = np.where(whole >= groups.pages, groups.pages, whole // grain * grain)
    return found


def parts(groups: Groups, fast: Integers) -> tuple[Items, Lives]:
    """Chunks that are moved as one, and their lives. fast: levels()."""
    count = len(fast)
    tensor: list[int] = []
    first: list[int] = []
    size: list[int] = []
    group: list[int] = []
    rank: list[int] = []
    for at, members in enumerate(groups.members):
        edges = np.unique(fast[: int(groups.length[at]), at])
        start = 0
        for row, pages in zip(members.tolist(), groups.sizes[at].tolist(), strict=True):
            inside = [0, *(edges[(edges > start) & (edges < start + pages)] - start).tolist()]
            # What begins a little sooner than it must is slow a little more.
            begins = [begin // GRAIN_PAGES * GRAIN_PAGES for begin in inside]
            for edge, begin, end in zip(inside, begins, [*begins[1:], pages], strict=True):
                if end > begin:
                    tensor.append(row)
                    first.append(begin)
                    size.append(end - begin)
                    group.append(at)
                    rank.append(start + edge)
            start += pages
    of = np.array(group, dtype=np.int64)
    length = groups.length[of]
    position = np.arange(count)[:, None]
    alive = position < length[None, :]
    state = (fast[:, of] > np.array(rank, dtype=np.int64)[None, :]) & alive
    # A life that ends keeps its last state; one that lasts comes back to its first.
    following = np.vstack([state[1:], np.zeros((1, len(of)), np.bool_)])
    lasts = groups.persistent[of]
    last = position == length[None, :] - 1
    following = np.where(last, np.where(lasts[None, :], state[:1], state), following)
    items = Items(
        tensor=np.array(tensor, dtype=np.int64),
        first_page=np.array(first, dtype=np.int64),
        pages=np.array(size, dtype=np.int64),
        birth=groups.birth[of],
        length=length,
        persistent=lasts,
        worth=groups.cost_ns[:, of] * np.array(size, dtype=np.float64),
    )
    return items, Lives(np.zeros(len(of)), state, (following != state) & alive)


def residency_of(items: Items, lives: Lives) -> Residency:
    """Where the parts are, stretch by stretch, if all goes as it should."""
    count, many = lives.fast.shape
    position = np.arange(count)[:, None]
    alive = position < items.length[None, :]
    stretch, part = items.stretch_of()[alive], np.nonzero(alive)[1]
    tier = np.full((count, many), ABSENT, np.uint8)
    tier[stretch, part] = ~lives.fast[alive]
    moving = np.zeros((count, many), np.bool_)
    moving[stretch, part] = lives.moving[alive]
    last, parts_ = items.length - 1, np.arange(many)
    end_tier = (~(lives.fast ^ lives.moving)[last, parts_]).astype(np.uint8)
    return Residency(items.tensor, items.first_page, items.pages, tier, moving, end_tier)
