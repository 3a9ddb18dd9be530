# SPDX-License-Identifier: Apache-2.0
"""Convert the linear program's fractions to pages: parts of tensors and the tier of each part.

The pages of a group are numbered consecutively across its tensors. If f pages of the group are
fast, these are the first f pages. When f changes, only the pages between the old and the new f
move. A plan can therefore follow the program's solution closely without needless moves.
"""

from __future__ import annotations

import numpy as np

from sentineld.model.arrays import Floats, Integers
from sentineld.plan.items import Items
from sentineld.plan.lives import Lives
from sentineld.plan.residency import ABSENT, Residency
from sentineld.policies.lp.groups import Groups

GRAIN_SHARE = 1 / 128
"""Grain, as a share of a group's pages: the number of the group's fast pages is rounded down to a
multiple of the grain, so that the group has few parts."""

GRAIN_PAGES = 16
"""Minimum grain, and alignment of parts within a tensor. 16 pages of 4 KiB are 64 KiB, the smaller
size of huge pages for which plan/huge.py aligns tensors."""


def levels(groups: Groups, fast_pages: Floats) -> Integers:
    """(S, G): fast_pages (see Solution in policies/lp/problem.py), rounded down to multiples of
    each group's grain; no rounding where the whole group is fast."""
    grain = np.maximum(np.ceil(groups.pages * GRAIN_SHARE), GRAIN_PAGES).astype(np.int64)
    grain = np.minimum(grain, np.maximum(groups.pages, 1))
    whole = np.floor(fast_pages + 1e-3).astype(np.int64)
    found: Integers = np.where(whole >= groups.pages, groups.pages, whole // grain * grain)
    return found


def parts(groups: Groups, fast: Integers) -> tuple[Items, Lives]:
    """Make the parts and their lives. A part moves as a unit. fast: the result of levels()."""
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
            # The first page of each part is rounded down to a multiple of GRAIN_PAGES. The pages
            # between the rounded and the exact first page then belong to this part instead of the
            # previous one. This part is fast at fewer positions than the previous one. So these
            # pages are slow more often than in the program's solution, and the plan stays within
            # the budget.
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
    # After its last position, a transient part stays on its tier; a persistent part returns to the
    # tier of its first position.
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
    """The tiers of the parts in each stretch if all moves are in time."""
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
