# SPDX-License-Identifier: Apache-2.0
"""The linear program with options: the recomputations among which it chooses.

A chosen option changes the pages of groups. With options, too, the program's optimum equals that
of its dual.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sentineld.model.timing import timing_of
from sentineld.policies.lp.dual import lower_bound
from sentineld.policies.lp.groups import Groups, groups_of
from sentineld.policies.lp.options import Options
from sentineld.policies.lp.problem import Limits
from sentineld.policies.lp.program import solve
from sentineld.policies.recompute.rewrite import halves
from tests.unit.policies.lp.test_dual import everywhere
from tests.unit.policies.recompute.test_candidates import OF_Y
from tests.unit.policies.recompute.toys import PAGE, Y, layered_profile
from tests.unit.policies.tiering import paged_tiers, tiers


def problem(pages: int, pages_per_s: float, paged: bool = False) -> tuple[Groups, Options, Limits]:
    """The step of layered_profile(). The recomputation of y is the only option."""
    profile, rows = halves(layered_profile(), [OF_Y])
    timing = timing_of(
        paged_tiers(pages_per_s, 2 * pages_per_s, 1e4) if paged else tiers(pages_per_s)
    )
    groups = groups_of(profile, timing, generous=True)
    group = [
        next(at for at, members in enumerate(groups.members) if row in members)
        for row in rows[0].tolist()
    ]
    size = int(profile.tensors["bytes"][Y]) // PAGE
    real = groups.pages.copy()
    real[group[1:]] -= size
    options = Options(
        stretch=np.array([OF_Y.at]),
        time_ns=np.array([float(OF_Y.time_ns)]),
        option=np.zeros(3, np.int64),
        group=np.array(group),
        pages=np.array([-size, size, size], dtype=np.float64),
    )
    limits = Limits(
        times_ns=profile.stretches["time_ns"].astype(np.float64),
        promote_ns=timing.promote_ns_per_byte * PAGE,
        demote_ns=timing.demote_ns_per_byte * PAGE,
        capacity_pages=pages,
        generous=True,
    )
    return replace(groups, pages=real), options, limits


def test_the_largest_groups_have_the_pages_of_the_options() -> None:
    groups, options, _ = problem(256, 0.0)
    whole, before, after = options.group.tolist()
    most = options.most_pages(groups)
    assert groups.pages[[whole, before, after]].tolist() == [64, 0, 0]
    assert most[[whole, before, after]].tolist() == [64.0, 64.0, 64.0]


def test_the_costs_change_by_those_of_the_recomputed_tensor() -> None:
    groups, options, _ = problem(256, 0.0)
    stretch, option, amount = options.changes(groups, groups.direct_ns)
    sums = np.bincount(stretch, amount, minlength=7)
    # If y is slow, its recomputation in stretch 5 writes it to slow memory once more.
    assert set(option.tolist()) == {0}
    assert sums == pytest.approx([0, 0, 0, 0, 0, 0.75 * 64 * PAGE, 0], abs=1e-3 * PAGE)


@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize("pages", [100, 256, 290])
@pytest.mark.parametrize("pages_per_s", [1e3, 1e5, 1e6])
def test_at_the_program_s_prices_the_dual_equals_it(
    pages: int, pages_per_s: float, paged: bool
) -> None:
    groups, options, limits = problem(pages, pages_per_s, paged)
    clean = np.ones(len(groups.pages), np.bool_)
    solution = solve(groups, limits, everywhere(groups), "this test", clean, options)
    assert solution is not None
    found = lower_bound(groups, limits, solution.prices, options)
    assert found.ns == pytest.approx(solution.step_ns, rel=1e-6)
    plain = solve(groups, limits, everywhere(groups), "this test", clean)
    assert plain is not None
    assert solution.step_ns <= plain.step_ns * (1 + 1e-9)


def test_without_an_option_the_groups_of_its_parts_are_left_out() -> None:
    groups, options, limits = problem(256, 0.0)
    kept, none = options.only(groups, np.zeros(0, np.int64))
    assert np.setdiff1d(np.arange(len(groups.pages)), kept).tolist() == sorted(options.group[1:])
    assert (len(none.stretch), len(none.option)) == (0, 0)
    kept, same = options.only(groups, np.zeros(1, np.int64))
    assert kept.tolist() == list(range(len(groups.pages)))
    assert same.group.tolist() == options.group.tolist()
    solution = solve(groups, limits, everywhere(groups), "this test", None, none)
    assert solution is not None
    assert len(solution.taken) == 0
