# SPDX-License-Identifier: Apache-2.0
"""The dual of the generous program (see Limits in problem.py): a lower bound on the step time.

At fixed prices of room, moves, hidden time and, on paged tiers, kept pages (Prices in problem.py),
the best life of a page does not depend on other pages. It is a shortest path through the positions
of the page's lifetime (its stretches, numbered from the birth), with two states at each position:
fast and slow. On paged tiers there are three states, because a fast page is dirty or clean. By weak
duality, the dual's value is a lower bound at any prices. So the prices can come from an inexact
solver, or from a program in which tiers change at fewer positions.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from sentineld.model.arrays import Floats, Mask
from sentineld.plan.lives import Lives
from sentineld.policies.lp.clean_walks import CleanGains, CleanLives, best_clean_walks
from sentineld.policies.lp.groups import Groups
from sentineld.policies.lp.options import Options
from sentineld.policies.lp.problem import Limits, Prices
from sentineld.policies.lp.relax import IMPOSSIBLE, Gains, best_walks


@dataclass(frozen=True)
class LowerBound:
    """The dual's value at given prices, and the moves of the best lives at these prices."""

    ns: float
    """No step takes less time than this."""

    moving: Mask
    """(S, G): whether the best life of each group moves its pages at the position."""

    clean: Mask
    """(G,): groups whose best lives demote pages while they are clean."""

    gains_ns: Floats = field(default_factory=lambda: np.zeros(0))
    """(N,): the time that each option saves at these prices; see Options.gains_ns()."""


def lower_bound(
    groups: Groups, limits: Limits, prices: Prices, options: Options | None = None
) -> LowerBound:
    """Evaluate the dual.

    limits: limits with `generous` set.
    prices: negative prices count as 0; the price of a moved page is capped at the time that its
        promotion takes, and the price of a kept page at the price of a moved page minus the price
        of its room.
    options: recomputations that a step may choose. At given prices, the cost of a share of an
        option is proportional to the share. So each option is taken either completely or not at
        all.
    """
    count, many = len(limits.times_ns), len(groups.pages)
    of = np.repeat(np.arange(count), np.diff(groups.points.first))
    boundaries, points = np.maximum(prices.boundaries, 0.0), np.maximum(prices.points, 0.0)
    moves, timed = np.maximum(prices.moves, 0.0), np.maximum(prices.timed_points, 0.0)
    # The price of a moved page is at most promote_ns, the time that its promotion takes. If the
    # price were higher, it would be cheaper to lengthen the stretch by promote_ns than to pay this
    # price. `moves` has prices per promoted page, and `timed` has prices per demoted page. `out` is
    # the time of a demotion divided by the time of a promotion. Division by `out` converts the
    # prices in `timed` to prices per promoted page.
    out = limits.demotion_weight
    sums = moves + np.bincount(of, timed, minlength=count) / out
    scale = np.ones(count)
    if np.isfinite(limits.promote_ns):
        scale = limits.promote_ns / np.maximum(sums, limits.promote_ns)
    moves, timed = moves * scale, timed * scale[of]
    # Net cost of each ns of a stretch: 1 minus the value of the moves that are possible in this ns.
    paid = moves + np.bincount(of, timed * groups.points.share, minlength=count) / out
    weight = 1.0 - paid / limits.promote_ns
    position = np.arange(count)[:, None]
    alive = position < groups.length[None, :]
    stretch = (groups.birth[None, :] + position) % max(count, 1)
    # In the dual, the price of 1 ns of hidden time (Prices.hidden) must not exceed the net cost of
    # 1 ns of the stretch.
    hidden = np.clip(prices.hidden, 0.0, weight)
    cost = groups.direct_ns * weight[stretch] + groups.hideable_ns * hidden[stretch]
    # busy_ns is the time in which moves cannot use the slow tier, because accesses (on paged tiers:
    # faults) use it. Charge this time at the price of moves.
    cost += groups.busy_ns * moves[stretch] / limits.promote_ns
    at_points, held = np.zeros((count, many)), np.zeros((count, many))
    for group, (point, at) in enumerate(groups.lived_points):
        np.add.at(at_points[:, group], at, points[point])
        np.add.at(held[:, group], at, points[point] + timed[point])
    held += np.where((position > 0) | groups.persistent[None, :], boundaries[stretch], 0.0)
    moved = moves[stretch]
    # On paged tiers, a promoted page may be one that a fault has fetched (fetched.py). Such a page
    # needs no move, but it needs room from the beginning of the stretch on. The number of these
    # pages is at most the touched share (Groups.touched) of the group's slow pages, so each slow
    # page raises this limit by the touched share.
    fetches = groups.touched > 0
    kept_price = np.clip(prices.kept, 0.0, np.maximum(moved - held, 0.0)) * fetches
    enter = np.where(fetches, np.minimum(moved, held + kept_price), moved)
    cost = np.where(alive, cost - groups.touched * kept_price, 0.0)
    # A page that is demoted and promoted again within a stretch, or demoted in the stretch of its
    # tensor's death, frees its room for a part of the stretch.
    last = (position == groups.length[None, :] - 1) & ~groups.persistent[None, :]
    relief = np.maximum(0.0, at_points - np.where(last, out * moved, (1.0 + out) * moved))
    relief[groups.stays] = 0.0
    keep = cost - held + relief
    leave = np.where(groups.stays, -IMPOSSIBLE, cost - held + at_points - out * moved)
    lives: Lives | CleanLives
    clean = np.zeros(many, np.bool_)
    if groups.paged:
        # The demotion of a clean page takes no time and frees the page's room immediately.
        at_boundary = np.where(
            (position > 0) | groups.persistent[None, :], boundaries[stretch], 0.0
        )
        clean_leave = np.where(groups.stays, -IMPOSSIBLE, cost - at_boundary)
        renewed = np.where(last, 0.0, moved)
        lives = best_clean_walks(
            CleanGains(
                dirty_stays=keep,
                dirty_leaves=leave,
                dirty_renews=leave - moved,
                clean_stays=np.maximum(cost - held, clean_leave - renewed),
                clean_leaves=clean_leave,
                enters=-enter,
            ),
            groups.writes,
            groups.length,
            groups.persistent,
        )
        clean = lives.clean
    else:
        gains = Gains(keep=keep, leave=leave, enter=-enter, stay=np.zeros((count, many)))
        lives = best_walks(gains, groups.length, groups.persistent)
    room = max(limits.capacity_pages, 0) * (boundaries.sum() + points.sum() + timed.sum())
    fixed = float(weight @ limits.times_ns + cost.sum(axis=0) @ groups.pages)
    in_flight = moves.sum() * max(1.0, out) + timed.sum()
    fixed -= float(room + in_flight * limits.in_flight_pages)
    if limits.hidden_ns is not None:
        fixed -= float(hidden @ limits.hidden_ns)
    bound_ns = fixed - float(lives.value @ groups.pages)
    if options is None:
        return LowerBound(bound_ns, lives.moving, clean)
    saved = options.gains_ns(lives.value - cost.sum(axis=0), weight)
    bound_ns -= float(np.maximum(saved, 0.0).sum())
    return LowerBound(bound_ns, lives.moving, clean, saved)
