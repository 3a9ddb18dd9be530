# SPDX-License-Identifier: Apache-2.0
"""SwapAdvisor's choice, checked by hand.

stretch    0   1   2   3   4   5   6   7   8   9
near      (x)                     (x)                 64 pages, (x) is a use
far       (x)                                 (x)     64 pages
other     (x)(x)                              (x)(x)  64 pages; unused from 2 to 7
guest                 [x   x]                         64 pages, born in 3, dead after 4

The budget holds three tensors; in stretches 3 and 4, four are alive.
"""

from __future__ import annotations

import numpy as np
import pytest

from sentineld.base.errors import SentinelError
from sentineld.model.arrays import Integers
from sentineld.model.plan import Plan
from sentineld.model.profile import Profile
from sentineld.model.tiers import Tiers
from sentineld.plan.check import verify
from sentineld.policies.registry import policy
from sentineld.policies.rivals.fixed import slow_costs_ns
from sentineld.policies.rivals.swapadvisor import (
    PINNED,
    SIZE_CLASSES,
    SLOW,
    Step,
    SwapAdvisor,
    parents_odds,
    search,
)
from sentineld.policies.rivals.swaps import open_book
from sentineld.simulate.simulate import simulate
from tests.unit.policies.rivals.guests import with_guest
from tests.unit.policies.rivals.laps import PAGE, Life, lap, moving

BUDGET = 3 * 64 * PAGE


def with_two_gaps() -> Profile:
    return lap(
        10,
        Life(64, (0, 6)),
        Life(64, (0, 8)),
        Life(64, (0, 1, 8, 9)),
        Life(64, (3, 4), (3, 4)),
    )


def step_of(profile: Profile, tiers: Tiers, budget: int, accesses_slow: bool = True) -> Step:
    book = open_book(profile, tiers, budget, accesses_slow)
    return Step.of(book, slow_costs_ns(profile, tiers), accesses_slow)


def genes_of(step: Step, **placement: int) -> Integers:
    """Genes (see search()) that put tensors of all sizes into one memory pool. placement: the genes
    of the named tensors (`t0` is tensor 0); the genes of other tensors are 0."""
    genes = np.zeros(SIZE_CLASSES + len(step.tensors), np.int64)
    for name, value in placement.items():
        genes[SIZE_CLASSES + int(name[1:])] = value
    return genes


def out(step: Step, genes: Integers) -> list[int]:
    return [swap.gap.tensor for swap in step.planned(genes).swaps]


def moved(plan: Plan) -> list[tuple[int, int, int]]:
    return [(int(m["tensor"]), int(m["boundary"]), int(m["tier"])) for m in plan.moves]


def test_the_victim_is_the_tensor_with_the_furthest_next_use() -> None:
    # In stretch 3, the next uses of the three tensors are in stretches 6, 8 and 8. Of tensors with
    # equal next uses, the first one is chosen. So `far` leaves right after its use in stretch 0,
    # and returns as soon as the guest is dead.
    profile = with_two_gaps()
    plan = policy("swapadvisor").plan(profile, moving(64), BUDGET)
    verify(plan, profile, BUDGET)
    assert moved(plan) == [(1, 1, 1), (1, 5, 0)]
    assert plan.predicted.step_ns == 10_000_000_000
    found = simulate(profile, policy("swapadvisor"), moving(64), BUDGET)
    assert found.step_seconds == pytest.approx(10)


def test_pinned_tensors_are_no_victims_and_slow_ones_need_no_room() -> None:
    step = step_of(with_two_gaps(), moving(64), BUDGET)
    assert out(step, genes_of(step)) == [1]
    assert out(step, genes_of(step, t1=PINNED)) == [2]
    assert out(step, genes_of(step, t1=PINNED, t2=PINNED)) == [0]
    assert out(step, genes_of(step, t0=SLOW)) == []
    # A tensor of 64 pages has two slow uses, each of which costs 1 ns per byte.
    assert step.cost(genes_of(step, t0=SLOW)) == pytest.approx(2 * 64 * PAGE)
    assert step.cost(genes_of(step)) == 0


def test_a_victim_whose_transfers_do_not_fit_is_passed_over() -> None:
    # At 22 pages a second, a transfer takes three stretches. The far tensor leaves in stretches 1
    # to 3, so part of the room that stretch 3 needs is missing. The remaining bandwidth is too
    # small for transfers of the other tensors.
    step = step_of(with_two_gaps(), moving(22), BUDGET)
    book = step.planned(genes_of(step))
    assert [swap.gap.tensor for swap in book.swaps] == [1]
    assert book.over.nonzero()[0].tolist() == [3]


def test_the_second_pass_begins_as_the_first_one_ended() -> None:
    # planned() makes two passes over the step. Guests are alive in stretches 2 and 3, and in
    # stretches 8 and 9. In stretch 2, the first pass evicts the first tensor: its next use is in
    # stretch 7, and the next use of the second tensor is in stretch 5. In stretch 8, the first pass
    # evicts the second tensor, whose next use is in stretch 5 of the next step. The second pass
    # begins with the second tensor swapped out, so the first guest has room.
    profile = lap(
        10,
        Life(64, (0, 7, 8, 9)),
        Life(64, (5, 6)),
        Life(64, (2, 3), (2, 3)),
        Life(64, (8, 9), (8, 9)),
    )
    step = step_of(profile, moving(64), 2 * 64 * PAGE)
    first, gaps = step.one_pass(genes_of(step), np.zeros(0, np.int64))
    assert [swap.gap[:] for swap in first.swaps] == [(0, 0, 7), (1, 6, 15)]
    assert step.wraps[gaps].tolist() == [False, True]
    book = step.planned(genes_of(step))
    assert [swap.gap[:] for swap in book.swaps] == [(1, 6, 15)]
    assert not book.over.any()


def test_each_pool_evicts_its_own_tensors() -> None:
    # SwapAdvisor divides memory into pools by tensor size. If large and small tensors have separate
    # pools, the small guest evicts the small tensor, although the next use of the large tensor is
    # further away.
    profile = lap(
        10,
        Life(64, (0, 8)),
        Life(16, (0, 6)),
        Life(16, (3, 4), (3, 4)),
    )
    step = step_of(profile, moving(64), 80 * PAGE)
    assert out(step, genes_of(step)) == [0]
    apart = genes_of(step)
    apart[int(np.frexp(64)[1])] = 1
    assert out(step, apart) == [1]


def test_a_search_finds_the_same_plan_each_time() -> None:
    profile = with_guest()
    step = step_of(profile, moving(20), BUDGET)
    one, other = search(step, 0.1), search(step, 0.1)
    assert one[0].tolist() == other[0].tolist()
    assert one[1] == other[1]


def test_a_search_is_no_worse_than_belady_alone() -> None:
    # Room for the guest costs two slow uses of one tensor, whichever tensor the search chooses.
    step = step_of(with_guest(), moving(20), BUDGET)
    genes, evaluated = search(step, 0.1)
    assert step.cost(genes) <= step.cost(genes_of(step))
    assert step.cost(genes) == pytest.approx(2 * 64 * PAGE)
    assert evaluated > 6


def test_cheaper_plans_are_chosen_more_often() -> None:
    # The finite costs differ by 10. The temperature of the softmax is 3, which is 0.3 (TEMPERATURE)
    # times this difference.
    odds = parents_odds([20.0, 10.0, float("inf")])
    assert odds.tolist() == pytest.approx(
        [np.exp(-10 / 3) / (1 + np.exp(-10 / 3)), 1 / (1 + np.exp(-10 / 3)), 0.0]
    )
    assert parents_odds([5.0, 5.0]).tolist() == [0.5, 0.5]
    assert parents_odds([float("inf")] * 2).tolist() == [0.5, 0.5]


def test_too_little_bandwidth_is_infeasible() -> None:
    with pytest.raises(SentinelError, match="infeasible as published: no plan of the genetic"):
        policy("swapadvisor").plan(with_guest(), moving(20), BUDGET)
    plan = policy("swapadvisor+slow").plan(with_guest(), moving(20), BUDGET)
    verify(plan, with_guest(), BUDGET)
    assert plan.predicted.step_ns == pytest.approx(1e9 * (6 + 2 * 64 * PAGE / 1e9), abs=2)


def test_no_search_if_the_tensors_of_a_stretch_do_not_fit() -> None:
    # All three persistent tensors are used in stretch 0.
    profile, tiers = with_two_gaps(), moving(64)
    step = step_of(profile, tiers, 2 * 64 * PAGE, accesses_slow=False)
    assert not step.fits_in_use()
    assert step_of(profile, tiers, BUDGET, accesses_slow=False).fits_in_use()
    book = open_book(profile, tiers, 2 * 64 * PAGE)
    chosen = SwapAdvisor("mine", accesses_slow=False)
    assert chosen.relieve(book, tiers, 0.1).startswith("best of 0 plans")
    assert book.swaps == []
