# SPDX-License-Identifier: Apache-2.0
"""The published schedule for one interval length: promote and evict interval by interval.

The schedule is found by following steps in which the rules below are applied at each boundary,
until a step is like the step before it:

- Evict what is cold: pages that neither the rest of the interval nor the next one uses.
- Births take fast memory as long as there is room, in the order of the step, if the interval or the
  next one uses the tensor.
- Promote what the next interval uses, the most accessed tensors first, as far as the fast memory
  and the bandwidth suffice. What is left when the interval ends is accessed in slow memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sentineld.model.arrays import Floats, Integers, Mask
from sentineld.plan.items import Items
from sentineld.plan.lives import Lives
from sentineld.policies.lp.relax import Capacities
from sentineld.policies.sentinel.intervals import stretches_ahead

STEPS_MAX = 6
"""Number of steps in which a schedule must become steady. If it does not, some chunks stay slow:
those of the tensors of which a chunk's life differed between two of the last steps."""

COMPARED_STEPS = 3
"""Number of these last steps."""


@dataclass(frozen=True)
class IntervalSchedule:
    """The steady schedule for one interval length."""

    lives: Lives

    without_room: int
    """Number of intervals at whose end pages were left to promote because fast memory was full
    (case 2 of the paper)."""

    without_time: int
    """Number of intervals at whose end pages were left to promote although there was room
    (case 3)."""


class IntervalScheduler:
    """Finds the steady schedule for any interval length."""

    def __init__(self, items: Items, capacities: Capacities) -> None:
        """The chunks of a transient tensor must follow each other in `items`."""
        self._items, self._capacities = items, capacities
        count, number = items.worth.shape
        position = (np.arange(count)[:, None] - items.birth[None, :]) % max(count, 1)
        # Stretches until the death; 0 or less if the chunk is not alive.
        self._left = items.length[None, :] - position
        self._old = (self._left > 0) & (items.persistent[None, :] | (position > 0))
        worth = np.zeros((count, number))
        worth[items.stretch_of(), np.arange(number)[None, :]] = items.worth
        self._until_use = _until_use(worth > 0)
        _, self._of_tensor = np.unique(items.tensor, return_inverse=True)
        accesses = np.zeros((int(self._of_tensor.max(initial=-1)) + 1, count))
        np.add.at(accesses, self._of_tensor, worth.T)
        self._accessed = np.zeros((count + 1, len(accesses)))
        np.cumsum(accesses.T, axis=0, out=self._accessed[1:])

    def schedule(self, stretches: int) -> IntervalSchedule:
        """The schedule for intervals of this number of stretches. It keeps to the capacities of
        each stretch."""
        items, uses = self._items, self._uses(stretches)
        slow = np.zeros(len(items.pages), np.bool_)
        while True:
            walk = _Walk(items, self._capacities, uses, slow)
            changed: Mask = np.zeros(len(slow), np.bool_)
            for step in range(STEPS_MAX):
                changes = walk.step()
                if not changes.any():
                    return walk.schedule()
                if step >= STEPS_MAX - COMPARED_STEPS:
                    changed |= changes
            slow |= np.isin(items.tensor, items.tensor[changed])

    def _uses(self, stretches: int) -> _Uses:
        persistent, left = self._items.persistent[None, :], self._left
        count = len(left)
        at = np.arange(count)
        end = np.minimum(at // stretches * stretches + stretches, count)
        begin = end % count  # the next interval's first stretch
        until_end = (end - at)[:, None]
        ahead = stretches_ahead(count, stretches)[:, None]
        following = ahead + 1 - until_end  # length of the next interval
        until_use = self._until_use
        # A use after the death is a use of the tensor's next life.
        used = persistent | (until_use < left)
        later = until_use[begin]
        used_later = persistent | (until_end + later < left)
        past = begin + following[:, 0]
        return _Uses(
            old=self._old,
            soon=(left > 0) & used & (until_use <= ahead),
            next=self._old & used_later & (later < following),
            dies=~persistent & (left <= until_end),
            rank=(self._accessed[past] - self._accessed[begin])[:, self._of_tensor],
            ends=end == at + 1,
        )


@dataclass(frozen=True)
class _Uses:
    """What the rules need to know of the uses of N chunks in S stretches."""

    old: Mask  # (S, N): the chunk exists at the boundary before the stretch
    soon: Mask  # (S, N): this interval, from this stretch on, or the next one uses the chunk
    next: Mask  # (S, N): the chunk is old, and the next interval uses it
    dies: Mask  # (S, N): the chunk's tensor dies before the interval ends
    rank: Floats  # (S, N): page accesses to the chunk's tensor in the next interval
    ends: Mask  # (S,): the stretch is the last one of its interval


def _until_use(uses: Mask) -> Integers:
    """(S, N): stretches from each stretch to the next one that uses the chunk, across the step's
    end; 0 if the stretch itself uses it. 3 S if the chunk is never used."""
    count = len(uses)
    found = np.full(uses.shape, 3 * count, np.int64)
    until = np.full(uses.shape[1], 3 * count, np.int64)
    for at in (*range(count - 1, -1, -1), *range(count - 1, -1, -1)):
        until = np.where(uses[at], 0, np.minimum(until + 1, 3 * count))
        found[at] = until
    return found


class _Walk:
    """Follows steps; each step begins with the tiers at which the one before it ended."""

    def __init__(self, items: Items, capacities: Capacities, uses: _Uses, slow: Mask) -> None:
        """slow: (N,), chunks that always stay slow."""
        self._items, self._capacities, self._uses = items, capacities, uses
        self._never = slow
        shape = items.worth.shape
        self._now = np.zeros(shape[1], np.bool_)  # which chunks are fast at the current boundary
        self._fast, self._moving = np.zeros(shape, np.bool_), np.zeros(shape, np.bool_)
        self._cases = 0, 0
        transient = np.flatnonzero(~items.persistent)
        self._born: list[Integers] = [
            transient[items.birth[transient] == at] for at in range(shape[0])
        ]

    def step(self) -> Mask:
        """Follow a step; returns which chunks' lives differ from those in the step before it."""
        fast, moving = self._fast.copy(), self._moving.copy()
        self._cases = 0, 0
        for stretch in range(len(self._fast)):
            self._follow(stretch)
        changed: Mask = ((fast != self._fast) | (moving != self._moving)).any(axis=0)
        return changed

    def schedule(self) -> IntervalSchedule:
        """The schedule of the last step."""
        stretch, chunk = self._items.stretch_of(), np.arange(len(self._items.pages))[None, :]
        lived = np.arange(len(stretch))[:, None] < self._items.length[None, :]
        lives = Lives(
            np.zeros(len(self._items.pages)),
            self._fast[stretch, chunk] & lived,
            self._moving[stretch, chunk] & lived,
        )
        return IntervalSchedule(lives, *self._cases)

    def _follow(self, stretch: int) -> None:
        pages, uses = self._items.pages, self._uses
        old = uses.old[stretch]
        fast = self._now & old
        time = float(self._capacities.moves[stretch])
        room = float(self._capacities.room[stretch]) - float(pages[fast].sum())

        cold = np.flatnonzero(fast & ~uses.soon[stretch] & ~uses.dies[stretch])
        demoted = _first(cold, pages, time)
        time -= float(pages[demoted].sum())

        born = self._births(stretch, room)
        room -= float(pages[born].sum())

        wanted = np.flatnonzero(uses.next[stretch] & ~fast & ~self._never)
        order = np.argsort(-uses.rank[stretch, wanted], kind="stable")
        promoted = _first(wanted[order], pages, min(time, room))
        if uses.ends[stretch] and len(promoted) < len(wanted):
            following = int(pages[wanted[order[len(promoted)]]])
            full = room - float(pages[promoted].sum()) < following
            without_room, without_time = self._cases
            self._cases = without_room + full, without_time + (not full)

        fast[born] = True
        self._fast[stretch] = fast
        self._moving[stretch] = False
        self._moving[stretch, demoted] = self._moving[stretch, promoted] = True
        self._now = fast ^ self._moving[stretch]

    def _births(self, stretch: int, room: float) -> Integers:
        """The chunks that are born fast in a stretch: whole tensors, in order, as long as they
        fit."""
        items, born = self._items, self._born[stretch]
        if not len(born):
            return born
        _, first = np.unique(items.tensor[born], return_index=True)
        fast: list[Integers] = []
        for chunks in np.split(born, np.sort(first)[1:]):
            size = float(items.pages[chunks].sum())
            wanted = self._uses.soon[stretch, chunks].any() and not self._never[chunks].any()
            if wanted and size <= room:
                room -= size
                fast.append(chunks)
        return np.concatenate([born[:0], *fast])


def _first(chunks: Integers, pages: Integers, limit: float) -> Integers:
    """The first chunks, as many as fit into `limit` pages."""
    found: Integers = chunks[np.cumsum(pages[chunks]) <= limit]
    return found
