# SPDX-License-Identifier: Apache-2.0
"""What a step takes at least, at given prices of room and moves: the dual of the generous program.

At fixed prices each page of a group chooses its life by itself, a shortest path
through two states. By weak duality the sum is a lower bound whatever the prices are:
they may come from a smaller program, or from a solver that isn't exact.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sentineld.model.arrays import Mask
from sentineld.policies.lp.groups import Groups
from sentineld.policies.lp.program import Limits, Prices
from sentineld.policies.lp.relax import Gains, best_walks


@dataclass(frozen=True)
class Least:
    """ns: no step takes less. moving: (S, G), after which positions the lives change that are best
    at these prices."""

    ns: float
    moving: Mask


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
    moved = moves[stretch]
    # Demoted and back within a stretch, or demoted in the stretch of its death: room for a moment.
    last = (position == groups.length[None, :] - 1) & ~groups.persistent[None, :]
    relief = np.maximum(0.0, met - np.where(last, moved, 2 * moved))
    lives = best_walks(
        Gains(
            keep=cost - held + relief,
            leave=cost - held + met - moved,
            enter=-moved,
            stay=np.zeros((count, many)),
        ),
        groups.length,
        groups.persistent,
    )
    room = max(limits.capacity_pages, 0) * (boundaries.sum() + crowds.sum() + timely.sum())
    fixed = float(weight @ limits.times_ns + cost.sum(axis=0) @ groups.pages)
    fixed -= float(room + (moves.sum() + timely.sum()) * limits.in_flight_pages)
    return Least(fixed - float(lives.value @ groups.pages), lives.moving)
