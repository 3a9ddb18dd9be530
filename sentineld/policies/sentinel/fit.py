# SPDX-License-Identifier: Apache-2.0
"""Feasible schedules: a life for each chunk, so that no stretch's capacities are exceeded.

Prices (policies/lp/relax.py) give the value of fast memory and of moves in each stretch. Chunks are
processed in the order of their gain per page. Each chunk gets the best life that still fits. In
later rounds, at lower prices, a chunk's life may be exchanged for a better one, to use up the
remaining capacity.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from sentineld.model.arrays import Floats, Integers, Mask
from sentineld.plan.items import Items
from sentineld.plan.lives import Lives
from sentineld.policies.lp.relax import (
    IMPOSSIBLE,
    Capacities,
    Costs,
    Prices,
    best_lives,
    price_costs,
    used_pages,
)

BATCH = 256
"""Number of chunks whose lives are chosen together. Each life is chosen as if no other chunk used
the remaining capacities, so the chosen lives together can exceed the capacities. If a chunk's
chosen life no longer fits, the chunk collides, and another life is chosen for it."""

PRICE_FACTORS = (2.0, 1.0, 0.5, 0.2, 0.02)
"""Prices of each round, as multiples of Fitting.prices."""

AGAIN_FACTORS = (1.0, 0.3, 0.02)
"""Price factors for chunks that unify_births() has removed and inserts again."""

MOVE_COST = 1e-3
"""Minimum cost of moving a page, in page accesses, so that no page moves without need."""


@dataclass
class Fitting:
    """A schedule under construction, which stays within the capacities at all times."""

    items: Items
    capacities: Capacities
    prices: Prices

    may_enter: Mask | None = None
    """(S, N): whether each chunk may be promoted in each position (a stretch of the chunk's
    lifetime; see Lives). None: in all positions."""

    stretch: Integers = field(init=False)
    """items.stretch_of()."""

    fast: Mask = field(init=False)
    """See Lives.fast."""

    moving: Mask = field(init=False)
    """See Lives.moving."""

    born_slow: Mask = field(init=False)
    """(N,): chunks that must not be born fast."""

    def __post_init__(self) -> None:
        shape = self.items.worth.shape
        self.stretch = self.items.stretch_of()
        self.fast, self.moving = np.zeros(shape, np.bool_), np.zeros(shape, np.bool_)
        self.born_slow = np.zeros(shape[1], np.bool_)
        self._room = np.maximum(self.capacities.room, 0.0)
        self._moves = np.maximum(self.capacities.moves, 0.0)

    def lives(self) -> Lives:
        """The schedule so far."""
        return Lives(np.zeros(len(self.items.pages)), self.fast, self.moving)

    def score(self) -> float:
        """Page accesses served fast, minus MOVE_COST for each page moved."""
        moved = float((self.items.pages * self.moving).sum())
        return float(self.lives().served(self.items).sum()) - MOVE_COST * moved

    def fill(self) -> None:
        """Choose a life for every chunk."""
        self._offer(np.arange(len(self.items.pages)), PRICE_FACTORS)

    def advance(self, furthest: int) -> None:
        """Start promotions earlier, by at most `furthest` stretches, as far as the remaining room
        and moves allow. A promotion that starts earlier can be in time even if the mover is slow.
        No access gets slower."""
        order = [
            (int(self.stretch[at, chunk]), int(at), int(chunk))
            for at, chunk in np.argwhere(self.moving & ~self.fast)
        ]
        for _, at, chunk in sorted(order):
            place, size = self.stretch[:, chunk], int(self.items.pages[chunk])
            earliest = at
            for earlier in range(at - 1, at - 1 - furthest, -1):
                if earlier <= 0 and not self.items.persistent[chunk]:
                    break  # no move in the stretch of the birth; see best_lives()
                busy = self.fast[earlier, chunk] or self.moving[earlier, chunk]
                if busy or self._room[place[earlier]] < size:
                    break
                if self._moves[place[earlier]] >= size:
                    earliest = earlier
            if earliest == at:
                continue
            self._moves[place[at]] += size
            self._moves[place[earliest]] -= size
            self._room[place[np.arange(earliest, at)]] -= size
            self.moving[at, chunk], self.moving[earliest, chunk] = False, True
            self.fast[np.arange(earliest + 1, at + 1), chunk] = True

    def unify_births(self) -> None:
        """Give all chunks of each transient tensor the same birth tier, because a tensor lies in
        one region.

        If at least half of the chunks are born fast, the others get the life of a fast-born chunk,
        provided that this life fits. Otherwise all chunks of the tensor are born slow.
        """
        transient = ~self.items.persistent
        born_fast = self.fast[0]
        for tensor in np.unique(self.items.tensor[transient]).tolist():
            chunks = np.flatnonzero(self.items.tensor == tensor)
            fast, slow = chunks[born_fast[chunks]], chunks[~born_fast[chunks]]
            if not len(fast) or not len(slow):
                continue
            before = self._copy(slow)
            self._take_out(slow)
            life = self.fast[:, fast[:1]], self.moving[:, fast[:1]]
            if len(fast) >= len(slow) and self._give_all(slow, *life):
                continue
            self._restore(slow, before)
            self.born_slow[chunks] = True
            self._take_out(chunks)
            self._offer(chunks, AGAIN_FACTORS)

    def _copy(self, chunks: Integers) -> tuple[Mask, Mask, Floats, Floats]:
        return (
            self.fast[:, chunks].copy(),
            self.moving[:, chunks].copy(),
            self._room.copy(),
            self._moves.copy(),
        )

    def _restore(self, chunks: Integers, copy: tuple[Mask, Mask, Floats, Floats]) -> None:
        self.fast[:, chunks], self.moving[:, chunks], self._room, self._moves = copy

    def _take_out(self, chunks: Integers) -> None:
        lives = Lives(np.zeros(len(chunks)), self.fast[:, chunks], self.moving[:, chunks])
        room, moves = used_pages(self.items.take(chunks), lives, self.stretch[:, chunks])
        self._room += room
        self._moves += moves
        self.fast[:, chunks] = False
        self.moving[:, chunks] = False

    def _give_all(self, chunks: Integers, fast: Mask, moving: Mask) -> bool:
        """Insert removed chunks of one tensor, all with the same life. If there is not enough room
        or not enough time to move all of them, insert none and return False. fast, moving: (S, 1),
        this life; see Lives."""
        lives = Lives(
            np.zeros(len(chunks)),
            np.repeat(fast, len(chunks), axis=1),
            np.repeat(moving, len(chunks), axis=1),
        )
        room, moves = used_pages(self.items.take(chunks), lives, self.stretch[:, chunks])
        if np.any(room > self._room) or np.any(moves > self._moves):
            return False
        self._room -= room
        self._moves -= moves
        self.fast[:, chunks], self.moving[:, chunks] = lives.fast, lives.moving
        return True

    def _offer(self, chunks: Integers, factors: tuple[float, ...]) -> None:
        """In rounds with falling prices, give chunks better lives where possible. In each round,
        the chunks with the largest gain per page come first."""
        some = self.items.take(chunks)
        for factor in factors:
            scaled = Prices(
                np.maximum(self.prices.room * factor, 1e-6),
                np.maximum(self.prices.move * factor, MOVE_COST),
            )
            costs = price_costs(some, scaled, self.stretch[:, chunks])
            gain = best_lives(some, costs).value / np.maximum(some.pages, 1)
            order = np.lexsort((some.first_page, some.tensor, -gain))
            while len(order):
                batch, rest = order[:BATCH], order[BATCH:]
                collided = self._trade(chunks[batch], costs.room[:, batch], costs.move[:, batch])
                # Try collided chunks again if at least one chunk of the batch did not collide.
                again = batch[collided]
                order = np.concatenate([again, rest]) if len(again) < len(batch) else rest

    def _trade(self, chunks: Integers, room_cost: Floats, move_cost: Floats) -> Integers:
        """Give chunks better lives. Returns the indices (into `chunks`) of the chunks that collide,
        that is, whose new lives no longer fit; see BATCH."""
        some, places = self.items.take(chunks), self.stretch[:, chunks]
        fast, moving = self.fast[:, chunks], self.moving[:, chunks]
        held = fast | moving
        room_ok = self._room[places] + held * some.pages >= some.pages
        move_ok = (self._moves[places] + moving * some.pages >= some.pages) & room_ok
        barred: Floats | float = 0.0
        if self.may_enter is not None:
            barred = np.where(self.may_enter[:, chunks], 0.0, IMPOSSIBLE)
        costs = Costs(
            room=np.where(room_ok, room_cost, IMPOSSIBLE),
            move=np.where(move_ok, move_cost, IMPOSSIBLE),
            enter=barred,
        )
        if self.born_slow[chunks].any():
            some.worth[0, self.born_slow[chunks]] = -IMPOSSIBLE
        lives = best_lives(some, costs)
        now = (
            (some.worth * (fast & ~moving)).sum(axis=0)
            - (room_cost * held).sum(axis=0)
            - (move_cost * moving).sum(axis=0)
        )
        collided = [
            at
            for at in np.flatnonzero(lives.value > now + 1e-9).tolist()
            if not self._exchange(int(chunks[at]), lives.fast[:, at], lives.moving[:, at])
        ]
        return np.array(collided, dtype=np.int64)

    def _exchange(self, chunk: int, fast: Mask, moving: Mask) -> bool:
        """Give a chunk another life; if it does not fit, keep the old life and return False."""
        place, size = self.stretch[:, chunk], int(self.items.pages[chunk])
        self._count(place, self.fast[:, chunk] | self.moving[:, chunk], self.moving[:, chunk], size)
        fits = bool(
            np.all(self._room[place[fast | moving]] >= size)
            and np.all(self._moves[place[moving]] >= size)
        )
        if fits:
            self.fast[:, chunk], self.moving[:, chunk] = fast, moving
        self._count(
            place, self.fast[:, chunk] | self.moving[:, chunk], self.moving[:, chunk], -size
        )
        return fits

    def _count(self, place: Integers, held: Mask, moving: Mask, size: int) -> None:
        """Add pages to the remaining capacities. If an index is repeated, `+=` adds to its element
        only once. This causes no error here, because no stretch occurs twice in a life."""
        self._room[place[held]] += size
        self._moves[place[moving]] += size
