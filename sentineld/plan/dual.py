# SPDX-License-Identifier: Apache-2.0
"""What a step takes at least, at given prices of room and moves: the dual of the generous program.

At fixed prices each page of a group chooses its life by itself, a shortest path
through two states. By weak duality the sum is a lower bound whatever the prices are:
they may come from a smaller program, or from a solver that isn't exact.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sentineld.plan.groups import Groups
from sentineld.plan.items import Floats
from sentineld.plan.program import Limits, Prices

SLOW, FAST = 0, 1

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Least:
    """ns: no step takes less. fast: (S, G), lives that are best at these prices, by position."""

    ns: float
    fast: Mask


def least(groups: Groups, limits: Limits, prices: Prices) -> Least:
    """The dual's value. limits: generous ones. prices: negative ones count as 0, and a moved page's
    is at most what it takes."""
    count, many = len(limits.times_ns), len(groups.pages)
    of = np.repeat(np.arange(count), np.diff(groups.crowds.first))
    boundaries, crowds = np.maximum(prices.boundaries, 0.0), np.maximum(prices.crowds, 0.0)
    moves, timely = np.maximum(prices.moves, 0.0), np.maximum(prices.timely, 0.0)
    # A stretch's time can't be worth more to what moves in it than it takes.
    sums = moves + np.bincount(of, timely, minlength=count)
    kept = np.ones(count)
    if np.isfinite(limits.page_ns):
        kept = limits.page_ns / np.maximum(sums, limits.page_ns)
    moves, timely = moves * kept, timely * kept[of]
    # Of a stretch's own time, what isn't paid for by what can move in it.
    paid = moves + np.bincount(of, timely * groups.crowds.share, minlength=count)
    weight = 1.0 - paid / limits.page_ns
    position = np.arange(count)[:, None]
    alive = position < groups.length[None, :]
    stretch = (groups.birth[None, :] + position) % max(count, 1)
    cost = np.where(alive, groups.cost_ns * weight[stretch], 0.0)
    met, held = np.zeros((count, many)), np.zeros((count, many))
    for group in range(many):
        crowd, at = groups.met(group)
        np.add.at(met[:, group], at, crowds[crowd])
        np.add.at(held[:, group], at, crowds[crowd] + timely[crowd])
    held += np.where((position > 0) | groups.persistent[None, :], boundaries[stretch], 0.0)
    worth, fast = _paths(groups, held - cost, moves[stretch], met)
    room = max(limits.capacity_pages, 0) * (boundaries.sum() + crowds.sum() + timely.sum())
    fixed = float(weight @ limits.times_ns + cost.sum(axis=0) @ groups.pages)
    fixed -= float(room + (moves.sum() + timely.sum()) * limits.in_flight_pages)
    return Least(fixed + float(worth @ groups.pages), fast & alive)


def _paths(groups: Groups, held: Floats, moved: Floats, met: Floats) -> tuple[Floats, Mask]:
    """The cheapest life of a page of each group, and its states.

    held: (S, G), for being fast in a position; moved: for a move in it; met: what the crowds
    of its stretch give back for being demoted in it.
    """
    count, many = held.shape
    every = np.arange(many)
    # By the state that the life begins with, for a circle comes back to it.
    so_far = np.full((2, 2, many), np.inf)
    so_far[SLOW, SLOW], so_far[FAST, FAST] = 0.0, held[0]
    came = np.zeros((count + 1, 2, 2, many), np.int8)
    final = np.zeros((2, many))
    last = groups.length - 1
    for at in range(count):
        # Demoted and back within a stretch: room for a moment.
        stay = np.minimum(0.0, 2 * moved[at] - met[at])
        leave = moved[at] - met[at]
        to_slow = np.stack([so_far[:, SLOW], so_far[:, FAST] + leave])
        to_fast = np.stack([so_far[:, SLOW] + moved[at], so_far[:, FAST] + stay])
        came[at + 1, :, SLOW], came[at + 1, :, FAST] = (
            to_slow.argmin(axis=0),
            to_fast.argmin(axis=0),
        )
        ends = last == at
        if ends.any():
            circle = np.stack([to_slow.min(axis=0)[SLOW], to_fast.min(axis=0)[FAST]])
            freed = so_far + np.stack([np.zeros(many), np.minimum(0.0, leave)])[None]
            chosen = np.where(groups.persistent, circle, freed.min(axis=1))
            final[:, ends] = chosen[:, ends]
            # How a life that ends here came to its last state.
            came[at + 1, :, SLOW, :] = np.where(
                ends & ~groups.persistent, freed.argmin(axis=1), came[at + 1, :, SLOW, :]
            )
            came[at + 1, :, FAST, :] = np.where(
                ends & ~groups.persistent, freed.argmin(axis=1), came[at + 1, :, FAST, :]
            )
        if at + 1 < count:
            so_far[:, SLOW], so_far[:, FAST] = to_slow.min(axis=0), to_fast.min(axis=0)
            so_far[:, FAST] += held[at + 1]
    start = final.argmin(axis=0)
    state = start.copy()
    fast = np.zeros((count, many), np.bool_)
    for at in range(count - 1, -1, -1):
        inside = at <= last
        state = np.where(inside, came[at + 1, start, state, every], state)
        fast[at] = (state == FAST) & inside
    return final.min(axis=0), fast
