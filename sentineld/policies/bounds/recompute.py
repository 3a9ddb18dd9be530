# SPDX-License-Identifier: Apache-2.0
"""The step-time bound if a step may also drop tensors and compute them again.

The program and its dual are those of the step-time bound (step_time.py), with an option for each
candidate (policies/recompute/candidates.py, policies/lp/options.py). The relaxations are those of
the step-time bound, and the following:

- a step may do only a fraction of a recomputation; this takes the same fraction of the
  recomputation's time;
- recomputations do not exclude each other: a segment (the layers that are executed again) may read
  an input that is itself dropped;
- a recomputation takes the segment's all-fast time even if its inputs are slow, and the tensors
  that the segment uses internally need no room.

On paged tiers, the program ignores that a recomputation's faults on its inputs can fetch pages that
a promotion keeps (policies/lp/fetched.py). The bound holds nevertheless if a promotion takes no
longer than the read that the fault makes, that is, unless the configured migration_bytes_per_s is
less than the disk's bandwidth.

The first program has no options. Each further program adds the options that save time at the prices
(dual values) of the program before it. If no such option is left, it adds positions at which groups
may change their tier, as for the step-time bound. The dual always has all options, not only those
of the program whose prices it gets. Its value is therefore a lower bound at any prices (see
lp/dual.py).

So a step takes no less time than the bound, whichever candidates it recomputes and whatever policy
moves its pages. The bound covers only the candidates: a step that recomputes other tensors, or that
executes longer segments again than candidates.py permits (SEGMENT_LAYERS), may take less time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sentineld.model.arrays import Floats, Integers
from sentineld.model.profile import Profile
from sentineld.model.tiers import Overlap, Tiers
from sentineld.model.timing import Timing, timing_of
from sentineld.plan.items import tensor_pages
from sentineld.policies.bounds import step_time
from sentineld.policies.bounds.step_time import (
    GAP,
    NEEDED_BY,
    bound_seconds,
    limits_of,
    require_solved,
    with_moves,
)
from sentineld.policies.lp.dual import lower_bound
from sentineld.policies.lp.groups import Groups, groups_of
from sentineld.policies.lp.options import Options
from sentineld.policies.lp.pressure import PressurePoints
from sentineld.policies.lp.problem import changes_of
from sentineld.policies.lp.program import solve
from sentineld.policies.recompute.candidates import Recomputation
from sentineld.policies.recompute.rewrite import halves, inserted_events

ROUNDS = 2 * step_time.ROUNDS
"""Maximum number of programs. A program adds either options or positions to the previous one."""


@dataclass(frozen=True)
class RecomputeBound:
    """The bound, and the results of the program and of its dual for each candidate."""

    seconds: float
    """No step takes less time than this."""
    taken: Floats
    """(N,): the share of each candidate, 0..1, that is recomputed in the relaxed step, which is the
    last program's optimum."""
    gains_ns: Floats
    """(N,): the time that each candidate saves at the final prices; negative if it costs time."""


def recompute_bound(
    profile: Profile, tiers: Tiers, budget_bytes: int, candidates: Sequence[Recomputation]
) -> RecomputeBound:
    """Compute the bound of a steady step that may make any of the candidates.

    If accesses overlap with other work, or moves yield to accesses, the cost of an access depends
    on the other accesses of its stretch. In these two cases, recomputation is ignored, and the
    result is the step-time bound.

    Raises SentinelError if scipy is not installed or the solver finds no optimum of the first
    program.
    """
    timing = timing_of(tiers)
    if not candidates or not is_modelled(timing):
        none = np.zeros(len(candidates))
        return RecomputeBound(bound_seconds(profile, tiers, budget_bytes), none, none - 1.0)
    groups, options = _problem(profile, timing, candidates)
    limits = limits_of(profile, timing, budget_bytes)
    bound_ns = float(profile.step_ns)
    taken, gains = np.zeros(len(candidates)), np.zeros(len(candidates))
    active = np.zeros(len(candidates), np.bool_)
    changes = changes_of(groups, generous=True)
    clean = np.zeros(len(groups.pages), np.bool_)
    for number in range(ROUNDS):
        which, fewer = options.only(groups, np.flatnonzero(active))
        solution = solve(
            groups.take(which),
            limits,
            [changes[at] for at in which.tolist()],
            NEEDED_BY,
            clean[which],
            fewer,
        )
        if solution is None:
            require_solved(number)
            break
        prices = solution.prices.for_groups(which, len(groups.pages))
        dual = lower_bound(groups, limits, prices, options)
        taken[active] = solution.taken
        bound_ns, gains = max(bound_ns, dual.ns), dual.gains_ns
        if bound_ns >= solution.step_ns * (1 - GAP):
            break
        more = (dual.gains_ns > 0) & ~active
        active |= more
        if more.any():
            continue  # add positions only once the prices account for these options
        clean |= dual.clean
        changes = with_moves(changes, dual)
    return RecomputeBound(bound_ns / 1e9, taken, gains)


def is_modelled(timing: Timing) -> bool:
    """Whether recomputation is modelled under this variant of the timing model."""
    return timing.overlap == Overlap.NONE and not timing.moves_yield


def _problem(
    profile: Profile, timing: Timing, candidates: Sequence[Recomputation]
) -> tuple[Groups, Options]:
    """The groups of the tensors and of the two parts of each dropped tensor (see halves() in
    rewrite.py), and the options."""
    both, rows = halves(profile, candidates)
    groups = groups_of(both, timing, generous=True)
    group = np.full(len(both.tensors), -1)
    for at, members in enumerate(groups.members):
        group[members] = at
    pages = tensor_pages(both)
    real = np.array(
        [int(pages[members[members < len(profile.tensors)]].sum()) for members in groups.members],
        dtype=np.int64,
    )
    option = np.repeat(np.arange(len(candidates)), [len(one.dropped) for one in candidates]).astype(
        np.int64
    )
    # An option takes a tensor's pages from the tensor's group, and gives as many pages to the group
    # of each of the tensor's two parts.
    sign = np.array([-1.0, 1.0, 1.0])
    entries = [
        (option, group[rows[:, part]], sign[part] * pages[rows[:, part]]) for part in range(3)
    ]
    options, which, amounts = (np.concatenate(one) for one in zip(*entries, strict=True))
    known = which >= 0  # -1: a tensor without costs, which is in no group
    return (
        replace(groups, pages=real, points=_later(profile, groups.points, candidates)),
        Options(
            stretch=np.array([one.at for one in candidates], dtype=np.int64),
            time_ns=np.array([one.time_ns for one in candidates], dtype=np.float64),
            option=options[known],
            group=which[known],
            pages=amounts[known],
        ),
    )


def _later(
    profile: Profile, points: PressurePoints, candidates: Sequence[Recomputation]
) -> PressurePoints:
    """The pressure points, each with the largest PressurePoints.share that it may have.

    share_passed() assumes that events are spread evenly over a stretch. A recomputation inserts
    events at the beginning of its stretch, so the other events come later. This increases the time
    for demotions before a point. Assume that the step makes all candidate recomputations. Then the
    points are as late as possible, which leaves the most time for demotions. So the bound is valid.
    """
    begins = profile.stretches["event"].astype(np.int64)
    inserted: Integers = np.zeros(profile.stretch_count, np.int64)
    for one in candidates:
        inserted[one.at] += inserted_events(profile, one)
    lengths = np.maximum(np.append(begins[1:], profile.event_count) - begins, 1)
    stretch = np.repeat(np.arange(profile.stretch_count), np.diff(points.first))
    passed = np.maximum(points.event - begins[stretch], 0) + inserted[stretch]
    share = np.minimum(passed / (lengths + inserted)[stretch], 1.0)
    return replace(points, share=np.maximum(points.share, share))
