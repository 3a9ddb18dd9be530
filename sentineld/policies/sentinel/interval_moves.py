# SPDX-License-Identifier: Apache-2.0
"""The published schedule for one interval length: promote and evict interval by interval.

Steps are simulated until a step begins and ends with the same pages fast. Rules at each boundary:

- Evict cold pages: neither the rest of the interval nor the next interval uses them, and their
  tensor does not die within the interval.
- If the interval or the next one uses a tensor, the tensor is born fast, as long as there is room.
  Births take the room in the order in which they happen in the step.
- Promote the pages that the next interval uses, those of the most accessed tensors first, as far as
  fast memory and bandwidth allow.
- In the interval's last stretch, promote the remaining pages that the next interval uses, as far as
  fast memory allows, although these promotions will be late (case 3 of the Sentinel paper). Trials
  under the live plan decide whether the process waits for them (plan/stall_trial.py). The schedule
  treats them as done when the next interval begins.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sentineld.model.arrays import Floats, Integers, Mask
from sentineld.plan.items import Items
from sentineld.plan.lives import Lives
from sentineld.policies.sentinel.intervals import coming_use, stretches_ahead

STEPS_MAX = 100
"""Limit on the number of steps that are simulated until the schedule is steady."""


@dataclass(frozen=True)
class IntervalSchedule:
    """The steady schedule for one interval length."""

    lives: Lives

    without_room: int
    """Number of intervals that end with pages left to promote because fast memory is full (case 2
    of the paper)."""

    late: Mask
    """(S, N): promotions for which there is room, but no time (case 3), by position (a stretch of
    the chunk's lifetime; see Lives). They begin in an interval's last stretch."""

    unsteady: int
    """Number of chunks that are kept slow because their lives changed from step to step."""


class IntervalScheduler:
    """Finds the steady schedule for any interval length."""

    def __init__(self, items: Items, room: float, moves: Floats) -> None:
        """items: the chunks of a transient tensor must be consecutive. room: fast pages for the
        chunks. moves: (S,), pages that can be moved in each stretch, in both directions together.
        """
        self._items, self._room, self._moves = items, room, moves
        count = items.stretch_count
        position = (np.arange(count)[:, None] - items.birth[None, :]) % max(count, 1)
        # (S, N): number of stretches from each stretch, inclusive, to the end of the chunk's life;
        # 0 or less if the chunk is not alive in the stretch.
        self._left = items.length[None, :] - position
        self._old = (self._left > 0) & (items.persistent[None, :] | (position > 0))
        # (S, N): number of stretches until the chunk's next use in its life; 0: this stretch uses
        # the chunk. If no use follows, a number larger than the number of stretches in a step.
        until_use = coming_use(items)[:-1] - np.arange(count)[:, None]
        self._until_use = items.by_stretch(until_use)
        _, self._of_tensor = np.unique(items.tensor, return_inverse=True)
        accesses = np.zeros((int(self._of_tensor.max(initial=-1)) + 1, count))
        np.add.at(accesses, self._of_tensor, items.by_stretch(items.worth).T)
        self._accessed = np.zeros((count + 1, len(accesses)))
        np.cumsum(accesses.T, axis=0, out=self._accessed[1:])
        self._births = _births(items)

    def schedule(self, stretches: int) -> IntervalSchedule:
        """The schedule for intervals of this number of stretches. It never exceeds the room. Only
        late promotions can exceed the number of pages that can be moved in a stretch.

        If the simulated steps do not become steady (see _Walk.run()), the lives of some tensors
        keep changing from step to step. The less accessed half of these tensors is then kept slow,
        and the simulation starts again.
        """
        uses = self._uses(stretches)
        slow = np.zeros(len(self._of_tensor), np.bool_)
        accesses = self._accessed[-1]
        while True:
            walk = _Walk(self._room, self._moves, self._items, uses, self._births, slow)
            changing = np.unique(self._of_tensor[walk.run()])
            if not len(changing):
                return walk.schedule()
            order = np.argsort(accesses[changing], kind="stable")
            half = changing[order[: (len(changing) + 1) // 2]]
            slow |= np.isin(self._of_tensor, half)

    def _uses(self, stretches: int) -> _Uses:
        persistent, left = self._items.persistent[None, :], self._left
        count = len(left)
        at = np.arange(count)
        end = np.minimum(at // stretches * stretches + stretches, count)
        begin = end % count  # the next interval's first stretch
        until_end = (end - at)[:, None]
        ahead = stretches_ahead(count, stretches)[:, None]
        following = ahead + 1 - until_end  # length of the next interval
        dies = ~persistent & (left <= until_end)
        past = begin + following[:, 0]
        return _Uses(
            old=self._old,
            soon=self._until_use <= ahead,
            next=self._old & ~dies & (self._until_use[begin] < following),
            dies=dies,
            rank=(self._accessed[past] - self._accessed[begin])[:, self._of_tensor],
            ends=end == at + 1,
        )


@dataclass(frozen=True)
class _Uses:
    """The uses of N chunks in S stretches, prepared for the rules in the module's docstring."""

    old: Mask  # (S, N): the chunk exists at the boundary that begins the stretch
    soon: Mask  # (S, N): this or the next interval uses the chunk, in this stretch or later
    next: Mask  # (S, N): `old` and not `dies`, and the next interval uses the chunk
    dies: Mask  # (S, N): the chunk's tensor dies before the interval ends
    rank: Floats  # (S, N): page accesses to the chunk's tensor in the next interval
    ends: Mask  # (S,): the stretch is the last one of its interval


def _births(items: Items) -> list[list[Integers]]:
    """For each stretch, the chunks of each tensor that is born in it."""
    found: list[list[Integers]] = [[] for _ in range(items.stretch_count)]
    transient = np.flatnonzero(~items.persistent)
    if len(transient):
        _, first = np.unique(items.tensor[transient], return_index=True)
        for chunks in np.split(transient, np.sort(first)[1:]):
            found[int(items.birth[chunks[0]])].append(chunks)
    return found


class _Walk:
    """Simulates steps. Each step begins with every chunk on the tier on which the previous step
    left it; the first step begins with all chunks slow."""

    def __init__(
        self,
        room: float,
        moves: Floats,
        items: Items,
        uses: _Uses,
        births: list[list[Integers]],
        slow: Mask,
    ) -> None:
        """births: see _births(). slow: (N,), chunks that always stay slow."""
        self._room, self._moves, self._items = room, moves, items
        self._uses, self._births, self._never = uses, births, slow
        shape = items.worth.shape
        self._now = np.zeros(shape[1], np.bool_)  # which chunks are fast at the current boundary
        self._fast, self._moving = np.zeros(shape, np.bool_), np.zeros(shape, np.bool_)
        self._without_room = 0
        self._late = np.zeros(shape, np.bool_)

    def run(self) -> Mask:
        """Simulate steps until a step repeats the previous step, or until a group of steps repeats.

        Returns which chunks' lives differ between the steps of the group; none if a single step
        repeats. If nothing has repeated after STEPS_MAX steps, returns which chunks' lives differ
        between the last two steps.
        """
        seen: dict[bytes, int] = {}
        changed: Mask
        for step in range(STEPS_MAX):
            state = self._state()
            if state in seen:
                changed = np.zeros_like(self._now)
                for _ in range(step - seen[state]):
                    changed |= self._step()
                return changed
            seen[state] = step
            changed = self._step()
            if self._state() == state:
                return np.zeros_like(changed)
        return changed

    def schedule(self) -> IntervalSchedule:
        """The schedule of the last step."""
        stretch, chunk = self._items.stretch_of(), np.arange(len(self._items.pages))[None, :]
        lived = np.arange(len(stretch))[:, None] < self._items.length[None, :]
        fast, moving, late = (
            table[stretch, chunk] & lived for table in (self._fast, self._moving, self._late)
        )
        lives = Lives(np.zeros(len(self._items.pages)), fast, moving)
        return IntervalSchedule(lives, self._without_room, late, int(self._never.sum()))

    def _state(self) -> bytes:
        """Which of the chunks that exist at the beginning of the step are fast. A step depends only
        on this state."""
        fast: Mask = self._now & self._uses.old[0]
        return fast.tobytes()

    def _step(self) -> Mask:
        """Simulate a step; returns which chunks' lives differ from those in the previous step."""
        fast, moving = self._fast.copy(), self._moving.copy()
        self._without_room = 0
        self._late[:] = False
        for stretch in range(len(self._fast)):
            self._follow(stretch)
        changed: Mask = ((fast != self._fast) | (moving != self._moving)).any(axis=0)
        return changed

    def _follow(self, stretch: int) -> None:
        pages, uses = self._items.pages, self._uses
        fast = self._now & uses.old[stretch]
        time = float(self._moves[stretch])
        room = self._room - float(pages[fast].sum())

        cold = np.flatnonzero(fast & ~uses.soon[stretch] & ~uses.dies[stretch])
        demoted = _first(cold, pages, time)
        time -= float(pages[demoted].sum())

        born = self._born_fast(stretch, room)
        room -= float(pages[born].sum())

        wanted = np.flatnonzero(uses.next[stretch] & ~fast & ~self._never)
        wanted = wanted[np.argsort(-uses.rank[stretch, wanted], kind="stable")]
        promoted = _first(wanted, pages, min(time, room))
        if uses.ends[stretch] and len(promoted) < len(wanted):
            in_time, promoted = promoted, _first(wanted, pages, room)
            self._without_room += len(promoted) < len(wanted)
            self._late[stretch, promoted[len(in_time) :]] = True

        fast[born] = True
        self._fast[stretch] = fast
        self._moving[stretch] = False
        self._moving[stretch, demoted] = self._moving[stretch, promoted] = True
        self._now = fast ^ self._moving[stretch]

    def _born_fast(self, stretch: int, room: float) -> Integers:
        """The chunks that are born fast in a stretch. A tensor is born fast if the rest of the
        interval or the next interval uses it and all of its chunks fit into the remaining room.
        Tensors take room in the order of their births."""
        fast: list[Integers] = [np.zeros(0, np.int64)]
        for chunks in self._births[stretch]:
            size = float(self._items.pages[chunks].sum())
            wanted = self._uses.soon[stretch, chunks].any() and not self._never[chunks].any()
            if wanted and size <= room:
                room -= size
                fast.append(chunks)
        return np.concatenate(fast)


def _first(chunks: Integers, pages: Integers, limit: float) -> Integers:
    """The first chunks, as many as fit into `limit` pages."""
    found: Integers = chunks[np.cumsum(pages[chunks]) <= limit]
    return found
