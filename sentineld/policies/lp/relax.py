# SPDX-License-Identifier: Apache-2.0
"""Prices for fast pages and for moves, and the best life of each chunk at these prices.

Chunks compete for fast pages and moves. If pages and moves have prices in each stretch, the best
life of a chunk no longer depends on other chunks. A life is a walk through two states, fast and
slow, with one transition for each position (each stretch of the chunk's lifetime). Dynamic
programming finds the best walk of each chunk. By weak duality, the total value of these walks plus
the value of the capacities is an upper bound at any prices. No schedule within the capacities
serves more page accesses fast than this bound. In many rounds, relax() raises the prices of
overused capacities and lowers the other prices, each time by a small amount. This makes the bound
tighter, and the prices become a better guide to feasible schedules.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sentineld.model.arrays import Floats, Integers, Mask
from sentineld.plan.items import Items
from sentineld.plan.lives import Lives

IMPOSSIBLE = 1e15
"""A price that exceeds any gain, but is small enough that sums with this price keep their
precision."""

# relax() applies Adam (Kingma and Ba, 2015) to the subgradients of the dual. Both of Adam's moving
# averages have the bias correction of the paper, but their decay rates differ from the paper's. The
# step length shrinks geometrically.
MEAN_DECAY, MEAN_WEIGHT = 0.85, 0.15
"""Adam's beta 1 and 1 - beta 1, for the mean of the subgradients."""

SQUARE_DECAY, SQUARE_WEIGHT = 0.97, 0.03
"""Adam's beta 2 and 1 - beta 2, for the mean of the subgradients' squares."""

SQUARE_FLOOR = 1e-9
"""Adam's epsilon, which keeps the division finite if a subgradient is always 0."""

FIRST_PRICES = (0.02, 0.2)
"""Initial prices of a fast page and of a moved page in every stretch, in page accesses."""

FIRST_STEPS = (0.05, 0.3)
"""Step lengths of the first round, for the prices of fast pages and of moved pages."""

LAST_STEP_SHARE = 0.02
"""Step length of the last round, as a share of the first one."""

GUIDE_DECAY, GUIDE_WEIGHT = 0.85, 0.15
"""Weights of the old average and of the new prices in Relaxed.guide, a moving average."""


@dataclass(frozen=True)
class Capacities:
    """The capacities of each stretch, (S,), in pages, which all chunks share."""

    room: Floats
    """Fast pages."""

    moves: Floats
    """Pages that can be moved, in both directions together."""


@dataclass(frozen=True)
class Prices:
    """Prices of each stretch, (S,), in page accesses."""

    room: Floats
    """Price of a fast page."""

    move: Floats
    """Price of a moved page."""


@dataclass(frozen=True)
class Costs:
    """The costs of each chunk at each position of its lifetime, (S, N), in page accesses."""

    room: Floats
    """Cost of being fast or in flight."""

    move: Floats
    """Cost of a move in either direction."""

    enter: Floats | float = 0.0
    """Cost of a promotion, in addition to `move`."""


@dataclass(frozen=True)
class Gains:
    """The gains, (S, N), of N chunks by position, and by the states before and after a position."""

    keep: Floats
    """Gain of a fast chunk that stays fast."""

    leave: Floats
    """Gain of a fast chunk that becomes slow."""

    enter: Floats
    """Gain of a slow chunk that becomes fast."""

    stay: Floats
    """Gain of a slow chunk that stays slow."""


@dataclass(frozen=True)
class Relaxed:
    """The result of relax()."""

    bound: float
    """No schedule serves more page accesses than this number from fast memory."""

    guide: Prices
    """Moving average of the prices, which varies less from round to round than the prices do."""


def price_costs(items: Items, prices: Prices, stretch: Integers) -> Costs:
    """The chunks' costs at these prices. stretch: items.stretch_of()."""
    return Costs(prices.room[stretch] * items.pages, prices.move[stretch] * items.pages)


def best_lives(items: Items, costs: Costs, generous: bool = False) -> Lives:
    """The best life of each chunk at these costs.

    A chunk may change its tier once in a stretch. A transient chunk may not do so in the stretch of
    its birth. In the stretch of a change, a chunk has the costs of fast room and of the move, and
    its accesses are served from slow memory. In any other stretch, its accesses are served from the
    tier on which the chunk is.

    generous: for a bound, allow anything that a mover can do. If a chunk is fast at some moment of
    a stretch, all accesses to it in this stretch are served fast. A chunk takes room in a stretch
    only if it is already fast at the boundary at which the stretch begins. It may be promoted and
    demoted within one stretch.
    """
    keep = items.worth - costs.room
    if generous:
        # A transient chunk is born after the boundary of position 0, so it takes no room there.
        keep[:1] = np.where(items.persistent, keep[:1], items.worth[:1])
        leave, enter = keep - costs.move, items.worth - costs.move - costs.enter
        stay = np.maximum(0.0, items.worth - 2 * costs.move)
    else:
        leave = -costs.room - costs.move
        enter = leave - costs.enter
        # A move begins at the boundary where its stretch begins. A transient chunk is born after
        # the boundary of position 0, so it cannot be moved in this position.
        leave[:1, ~items.persistent] = enter[:1, ~items.persistent] = -IMPOSSIBLE
        stay = np.zeros(keep.shape)
    return best_walks(Gains(keep, leave, enter, stay), items.length, items.persistent)


def best_walks(gains: Gains, length: Integers, persistent: Mask) -> Lives:
    """For each chunk, the walk with the largest gain; its states are fast and slow.

    length, persistent: (N,), see Items. A persistent chunk ends in the state in which it begins.
    """
    count, many = gains.keep.shape
    position = np.arange(count)[:, None]
    alive = position < length[None, :]
    # A transient chunk dies in its last position, so a change of tier there would be useless.
    last = (position == length[None, :] - 1) & ~persistent[None, :]
    fixed = last | ~alive
    # The gain of each position by the states after and before it. Index: [position, state after (0:
    # fast, 1: slow), state before, 0, chunk]. The axis with the index 0 is broadcast over both
    # states in which the life can begin (see `most`). After its life a chunk keeps its state and
    # gains nothing.
    gain = np.empty((count, 2, 2, 1, many))
    gain[:, 0, 0, 0] = np.where(alive, gains.keep, 0.0)
    gain[:, 1, 0, 0] = np.where(fixed, -IMPOSSIBLE, gains.leave)
    gain[:, 0, 1, 0] = np.where(fixed, -IMPOSSIBLE, gains.enter)
    gain[:, 1, 1, 0] = np.where(alive, gains.stay, 0.0)

    # The largest total gain of the current position and all later ones. Index: [state before the
    # current position, state in which the life begins, chunk].
    most = np.zeros((2, 2, many))
    most[0, 1, persistent] = most[1, 0, persistent] = -IMPOSSIBLE
    # Whether a chunk is fast after a position. Index: [position, state before, state in which the
    # life begins, chunk]. If both states after the position give the same gain, the
    # chunk keeps its state.
    goes_fast = np.empty((count, 2, 2, many), np.bool_)
    for at in range(count - 1, -1, -1):
        fast, slow = gain[at] + most[:, None]
        np.greater_equal(fast[0], slow[0], out=goes_fast[at, 0])
        np.greater(fast[1], slow[1], out=goes_fast[at, 1])
        np.maximum(fast, slow, out=most)
    to_fast, to_slow = most
    stays_fast, gets_fast = goes_fast[:, 0], goes_fast[:, 1]
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
    """Find good prices by subgradient descent. The number of rounds is fixed, so the result is
    deterministic.

    Negative capacities count as 0. generous: see best_lives().
    """
    count = items.stretch_count
    stretch = items.stretch_of()
    capacity = np.maximum(np.concatenate([capacities.room, capacities.moves]), 0.0)
    price = np.repeat(FIRST_PRICES, count)
    longest = np.repeat(FIRST_STEPS, count)
    mean, square = np.zeros(2 * count), np.zeros(2 * count)
    # The first bound is the one at zero prices, at which every access is served fast.
    best, guide = float(items.worth.sum()), price
    for turn in range(rounds):
        costs = price_costs(items, Prices(price[:count], price[count:]), stretch)
        lives = best_lives(items, costs, generous)
        best = min(best, float(lives.value.sum() + price @ capacity))
        guide = GUIDE_DECAY * guide + GUIDE_WEIGHT * price
        slope = np.concatenate(used_pages(items, lives, stretch, generous)) - capacity
        mean = MEAN_DECAY * mean + MEAN_WEIGHT * slope
        square = SQUARE_DECAY * square + SQUARE_WEIGHT * slope**2
        direction = (mean / (1 - MEAN_DECAY ** (turn + 1))) / (
            np.sqrt(square / (1 - SQUARE_DECAY ** (turn + 1))) + SQUARE_FLOOR
        )
        step = longest * LAST_STEP_SHARE ** (turn / rounds)
        price = np.maximum(price + step * direction, 0.0)
    return Relaxed(best, Prices(guide[:count], guide[count:]))


def used_pages(
    items: Items, lives: Lives, stretch: Integers, generous: bool = False
) -> tuple[Floats, Floats]:
    """(pages that take fast room, moved pages) of each stretch. stretch: items.stretch_of().

    generous: chunks take no room in the stretch in which they are born or promoted; see
    best_lives().
    """
    count = items.stretch_count
    flat = stretch.ravel()
    if generous:
        held = lives.fast.copy()
        held[:1] &= items.persistent
    else:
        held = lives.held
    return (
        np.bincount(flat, (items.pages * held).ravel(), minlength=count).astype(np.float64),
        np.bincount(flat, (items.pages * lives.moving).ravel(), minlength=count).astype(np.float64),
    )
