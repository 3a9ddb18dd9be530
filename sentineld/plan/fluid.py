# SPDX-License-Identifier: Apache-2.0
"""The least time that any software policy can take for a step, under the timing model.

A linear program: pages become a fluid. For each tensor, what part of it is fast
at each boundary is a variable; capacity at boundaries, the migration bandwidth and
the stretches' times are linear in these. docs/policies.md says what it relaxes
and why no policy can beat it. Needs scipy.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from sentineld.errors import SentinelError
from sentineld.plan.items import Floats, Integers, by_position, lifetimes, tensor_pages
from sentineld.plan.solver import quiet_solver
from sentineld.profile.model import Kind, Profile
from sentineld.tiers import Tiers
from sentineld.timing import timing_of

DIGITS = 4
"""Costs of a page are rounded down to so many significant digits, so that tensors that are used
alike become one: the bound gives away a thousandth of the slow accesses' cost at most."""

UNIT_PAGES = 256.0
"""The solver's unit of memory: a MiB of small pages."""


@dataclass(frozen=True)
class Fluids:
    """G groups of tensors that live and cost alike. birth, length, pages: (G,). length: positions
    until the last that costs anything, all of the circle if persistent. cost_ns: (S, G), of a slow
    page by position."""

    birth: Integers
    length: Integers
    pages: Floats
    persistent: npt.NDArray[np.bool_]
    cost_ns: Floats


def bound_seconds(profile: Profile, tiers: Tiers, budget_bytes: int) -> float:
    """No policy takes less for a steady step. Raises SentinelError without scipy, or if the solver
    finds no answer."""
    timing = timing_of(tiers)
    times_ns = profile.stretches["time_ns"].astype(np.float64)
    fluids = _fluids(profile, timing.extra_ns(profile))
    page_ns = timing.move_ns_per_byte * profile.page_bytes
    all_fast_ns = float(times_ns.sum())
    # The solver's tolerances are absolute: numbers near 1.
    unit_ns, unit_pages = max(all_fast_ns / max(len(times_ns), 1), 1.0), UNIT_PAGES
    scaled = replace(
        fluids, pages=fluids.pages / unit_pages, cost_ns=fluids.cost_ns * unit_pages / unit_ns
    )
    least = _solve(
        scaled,
        times_ns / unit_ns,
        budget_bytes / profile.page_bytes / unit_pages,
        page_ns * unit_pages / unit_ns,
        1 / unit_pages,
    )
    return max(least * unit_ns, all_fast_ns) / 1e9


def _fluids(profile: Profile, extra_ns: Floats) -> Fluids:
    count = profile.stretch_count
    birth, length = lifetimes(profile)
    persistent = profile.tensors["kind"] == Kind.PERSISTENT
    pages = tensor_pages(profile)
    cost = _rounded_down(by_position(profile, extra_ns) / np.maximum(pages, 1))
    # Who dies in the stretch of its birth is at no boundary: it costs no room and is always fast.
    matters = np.flatnonzero((cost.any(axis=0)) & (persistent | (length > 1)))
    last = count - np.argmax(cost[::-1, matters] > 0, axis=0)
    lived = np.where(persistent[matters], count, np.minimum(last, length[matters]))
    groups: dict[tuple[int, int, bool, bytes], int] = {}
    members: list[int] = []
    sizes: list[float] = []
    for at, tensor in enumerate(matters.tolist()):
        lasts = bool(persistent[tensor])
        key = (int(birth[tensor]), int(lived[at]), lasts, cost[:, tensor].tobytes())
        group = groups.setdefault(key, len(groups))
        if group == len(members):
            members.append(at)
            sizes.append(0.0)
        sizes[group] += float(pages[tensor])
    chosen = matters[members]
    return Fluids(
        birth[chosen], lived[members], np.array(sizes), persistent[chosen], cost[:, chosen]
    )


def _rounded_down(values: Floats) -> Floats:
    scale = np.power(10.0, np.floor(np.log10(np.where(values > 0, values, 1.0))) - DIGITS + 1)
    rounded: Floats = np.floor(values / scale * (1 + 1e-12)) * scale
    return rounded


def _solve(
    fluids: Fluids, times: Floats, capacity: float, move_time: float, in_flight: float
) -> float:
    """Minimise the sum of the stretches' times D. Any unit of time and of memory will do.

    Variables: f, what is fast of each group at each of its positions; d, what is demoted in it; D.
    What is promoted is u = f(next) - f + d >= 0. For each stretch: the sum of f at its boundary is
    at most the capacity; D >= time + cost x (pages - f); u + d in all take at most D. in_flight:
    what may be moved in a stretch beyond that, because it was in flight when the stretch began.
    """
    try:
        from scipy.optimize import linprog
        from scipy.sparse import coo_matrix
    except ImportError:
        raise SentinelError(
            "failed", "the bound needs scipy, which is not installed", "apt install python3-scipy"
        ) from None
    count, groups = len(times), len(fluids.pages)
    first = np.concatenate([[0], np.cumsum(fluids.length)])
    total = int(first[-1])
    group = np.repeat(np.arange(groups), fluids.length)
    position = np.arange(total) - first[group]
    stretch = (fluids.birth[group] + position) % max(count, 1)
    f = np.arange(total)
    last = position == fluids.length[group] - 1
    moves = ~last | fluids.persistent[group]
    following = np.where(last, first[group], f + 1)[moves]
    here = f[moves]
    d = total + np.arange(len(here))
    duration = total + len(here) + np.arange(count)
    many = total + len(here) + count
    moving = len(here)
    rows: list[Integers] = []
    columns: list[Integers] = []
    values: list[Floats] = []

    def put(row: Integers, column: Integers, value: float | Floats) -> None:
        rows.append(row)
        columns.append(column)
        values.append(np.broadcast_to(np.asarray(value, np.float64), row.shape))

    # f - f(next) - d <= 0
    each = np.arange(moving)
    put(each, here, 1.0)
    put(each, following, -1.0)
    put(each, d, -1.0)
    # Capacity. A birth lies between two boundaries.
    at_boundary = (position > 0) | fluids.persistent[group]
    put(moving + stretch[at_boundary], f[at_boundary], 1.0)
    # time + sum of cost x (pages - f) <= D
    cost = fluids.cost_ns[position, group]
    slow = np.bincount(stretch, cost * fluids.pages[group], minlength=count)
    costly = cost > 0
    put(moving + count + stretch[costly], f[costly], -cost[costly])
    put(moving + count + np.arange(count), duration, -1.0)
    # sum of (u + d) = f(next) - f + 2 d <= D / move_time + in_flight
    put(moving + 2 * count + stretch[moves], following, 1.0)
    put(moving + 2 * count + stretch[moves], here, -1.0)
    put(moving + 2 * count + stretch[moves], d, 2.0)
    put(moving + 2 * count + np.arange(count), duration, -1.0 / move_time)
    limits = np.concatenate(
        [np.zeros(moving), np.full(count, capacity), -(times + slow), np.full(count, in_flight)]
    )
    matrix = coo_matrix(
        (np.concatenate(values), (np.concatenate(rows), np.concatenate(columns))),
        shape=(len(limits), many),
    ).tocsr()
    size = fluids.pages[group]
    upper = np.concatenate([size, size[moves], np.full(count, np.inf)])
    goal = np.concatenate([np.zeros(total + moving), np.ones(count)])
    with quiet_solver():
        answer = linprog(
            goal,
            A_ub=matrix,
            b_ub=limits,
            bounds=np.column_stack([np.zeros(many), upper]),
            method="highs",
        )
    if answer.status != 0:
        raise SentinelError(
            "failed", f"the bound's linear program was not solved: {answer.message}", ""
        )
    return float(answer.fun)
