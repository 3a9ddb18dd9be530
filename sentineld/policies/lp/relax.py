# SPDX-License-Identifier: Apache-2.0
"""Prices for fast pages and for moves, and what each chunk would do at these prices.

With a price for a fast page in each stretch and one for a moved page in each
stretch, chunks no longer compete: the best life of each is a walk through two
states, fast and slow, found by dynamic programming for all chunks at once.
Their total worth plus what the capacities would earn at these prices is at
least what any schedule within the capacities can serve (weak duality), for
whatever prices. Raising the prices of what is overused and lowering the others
makes this bound tight, and the prices a good guide to real schedules.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sentineld.model.arrays import Floats, Integers, Mask
from sentineld.plan.items import Items

IMPOSSIBLE = 1e15
"""A price that nothing is worth; sums of it stay exact enough to be compared."""


@dataclass(frozen=True)
class Capacities:
    """For each stretch: fast pages for chunks, and pages that can be moved in it."""

    room: Floats
    moves: Floats


@dataclass(frozen=True)
class Prices:
    """For each stretch: of a fast page, of a moved page; in page accesses."""

    room: Floats
    move: Floats


@dataclass(frozen=True)
class Costs:
    """What each chunk pays in each position, (S, N): for being fast or in flight, for being moved
    in either direction, and beside that for getting fast."""

    room: Floats
    move: Floats
    enter: Floats | float = 0.0


@dataclass(frozen=True)
class Gains:
    """What a life gains in each position, (S, N), by its state in it and after it: fast and still
    fast, fast and then slow, slow and then fast, slow and still slow."""

    keep: Floats
    leave: Floats
    enter: Floats
    stay: Floats


@dataclass(frozen=True)
class Relaxed:
    """bound: no schedule serves more page accesses fast. guide: steady prices near those that
    prove it."""

    bound: float
    guide: Prices


@dataclass(frozen=True)
class Lives:
    """A life for each chunk. value: worth less costs, (N,). fast, moving: (S, N) by position;
    moving says that the state changes after that position, the move going on during it."""

    value: Floats
    fast: Mask
    moving: Mask

    @property
    def held(self) -> Mask:
        """Where fast pages are taken up: fast, or on the way to or from it."""
        return self.fast | self.moving

    def served(self, items: Items) -> Floats:
        """(N,): page accesses served fast; what is being moved counts as slow."""
        served: Floats = (items.worth * (self.fast & ~self.moving)).sum(axis=0)
        return served


def price_costs(items: Items, prices: Prices, stretch: Integers) -> Costs:
    """Costs at these prices. stretch: items.stretch_of()."""
    return Costs(prices.room[stretch] * items.pages, prices.move[stretch] * items.pages)


def best_lives(items: Items, costs: Costs, generous: bool = False) -> Lives:
    """The best life of each chunk at these costs.

    A page serves a stretch from where it is when the stretch begins; it may
    change its state once a stretch, is then in both tiers and pays for both.
    A stretch in which a chunk is being moved serves it slow. generous: instead,
    a page that is fast at any moment of a stretch serves it fast, pages take
    room only at boundaries, and one may come and go within a stretch; whatever a
    real mover can do is allowed.
    """
    keep = items.worth - costs.room
    if generous:
        leave, enter = keep - costs.move, items.worth - costs.move - costs.enter
        stay = np.maximum(0.0, items.worth - 2 * costs.move)
    else:
        leave = -costs.room - costs.move
        enter = leave - costs.enter
        stay = np.zeros(keep.shape)
    return best_walks(Gains(keep, leave, enter, stay), items.length, items.persistent)


def best_walks(gains: Gains, length: Integers, persistent: Mask) -> Lives:
    """The walk of each life through the states fast and slow that gains most. length, persistent:
    (N,); a life that persists comes back to the state that it begins with."""
    count, many = gains.keep.shape
    position = np.arange(count)[:, None]
    alive = position < length[None, :]
    # A transient chunk has no state after its end; to change it there would be a move for nothing.
    last = (position == length[None, :] - 1) & ~persistent[None, :]
    # After its life a chunk stays what it is, for nothing.
    keep, stay = np.where(alive, gains.keep, 0.0), np.where(alive, gains.stay, 0.0)
    fixed = last | ~alive
    leave = np.where(fixed, -IMPOSSIBLE, gains.leave)
    enter = np.where(fixed, -IMPOSSIBLE, gains.enter)

    # [state at the begin: fast, slow; chunk]: the worth of what is to come, by state now.
    to_fast, to_slow = np.zeros((2, many)), np.zeros((2, many))
    to_fast[1, persistent] = -IMPOSSIBLE
    to_slow[0, persistent] = -IMPOSSIBLE
    stays_fast = np.empty((count, 2, many), np.bool_)
    gets_fast = np.empty((count, 2, many), np.bool_)
    for at in range(count - 1, -1, -1):
        kept, left = keep[at] + to_fast, leave[at] + to_slow
        entered, stayed = enter[at] + to_fast, stay[at] + to_slow
        np.greater_equal(kept, left, out=stays_fast[at])
        np.greater(entered, stayed, out=gets_fast[at])
        np.maximum(kept, left, out=to_fast)
        np.maximum(entered, stayed, out=to_slow)
    begins_fast = to_fast[0] > to_slow[1]
    value = np.where(begins_fast, to_fast[0], to_slow[1])
    stays = np.where(begins_fast, stays_fast[:, 0], stays_fast[:, 1])
    gets = np.where(begins_fast, gets_fast[:, 0], gets_fast[:, 1])
    states = np.empty((count + 1, many), np.bool_)
    states[0] = begins_fast
    for at in range(count):
        states[at + 1] = np.where(states[at], stays[at], gets[at])
    return Lives(value, states[:-1] & alive, (states[1:] != states[:-1]) & alive)


def relax(items: Items, capacities: Capacities, rounds: int, generous: bool = False) -> Relaxed:
    """Find good prices in a fixed number of rounds; deterministic.

    Subgradients of the dual, with momentum and a step length of each price's
    own that shrinks to a fiftieth. Capacities below 0 count as 0.
    """
    count = items.stretch_count
    stretch = items.stretch_of()
    capacity = np.maximum(np.concatenate([capacities.room, capacities.moves]), 0.0)
    price = np.repeat([0.02, 0.2], count)
    longest = np.repeat([0.05, 0.3], count)
    mean, square = np.zeros(2 * count), np.zeros(2 * count)
    # Without a price nothing is denied: everything is served fast.
    best, steady = float(items.worth.sum()), price
    for turn in range(rounds):
        costs = price_costs(items, Prices(price[:count], price[count:]), stretch)
        lives = best_lives(items, costs, generous)
        best = min(best, float(lives.value.sum() + price @ capacity))
        steady = 0.85 * steady + 0.15 * price
        slope = np.concatenate(use(items, lives, stretch, generous)) - capacity
        mean = 0.85 * mean + 0.15 * slope
        square = 0.97 * square + 0.03 * slope**2
        ahead = (mean / (1 - 0.85 ** (turn + 1))) / (
            np.sqrt(square / (1 - 0.97 ** (turn + 1))) + 1e-9
        )
        price = np.maximum(price + longest * 0.02 ** (turn / rounds) * ahead, 0.0)
    return Relaxed(best, Prices(steady[:count], steady[count:]))


def use(
    items: Items, lives: Lives, stretch: Integers, generous: bool = False
) -> tuple[Floats, Floats]:
    """Pages of room and pages moved in each stretch; stretch: items.stretch_of()."""
    count = items.stretch_count
    flat = stretch.ravel()
    held = lives.fast if generous else lives.held
    return (
        np.bincount(flat, (items.pages * held).ravel(), minlength=count).astype(np.float64),
        np.bincount(flat, (items.pages * lives.moving).ravel(), minlength=count).astype(np.float64),
    )
