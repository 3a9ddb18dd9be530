# SPDX-License-Identifier: Apache-2.0
"""Colloid's search and its moves, checked by hand: four cells of ten pages."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from sentineld.model.tiers import Overlap, Tier, Tiers
from sentineld.plan.policy import DelayingReactor, MoveRequest, Observation, Reactive
from sentineld.policies.registry import policy
from sentineld.policies.rivals.colloid import Balance, Search, balance, first_of
from sentineld.policies.rivals.reactive import HINT_FAULT_NS
from sentineld.simulate.simulate import simulate
from tests.unit.plan.toys import PAGE, toy_profile, two_tiers
from tests.unit.policies.rivals.laps import PAGE as LAP_PAGE
from tests.unit.policies.rivals.laps import Life, lap
from tests.unit.policies.rivals.observing import observation

UP, DOWN = MoveRequest(0, 0, 10), MoveRequest(1, 1, 10)


@dataclass
class Modified:
    """A reactor (see plan/policy.py) that requests the same moves at each tick: cell 0 is promoted
    and cell 1 demoted."""

    interval_ns: float = 7.0

    def tick(self, observation: Observation) -> list[MoveRequest]:
        del observation
        return [DOWN, UP]


def seen(fast_ns: float, slow_ns: float) -> Observation:
    """Cells 1 and 2 are fast. Cells 0 to 3 have 20, 10, 50 and 20 % of the accesses."""
    return observation([2, 1, 5, 2], [0, 10, 10, 0], latencies_ns=(fast_ns, slow_ns))


def test_the_search_halves_the_interval_of_possible_shares() -> None:
    search = Search(0.05)
    # 90 % of the accesses are fast, and the fast tier has the higher latency: the next share is the
    # middle of 0 and 0.9.
    assert search.amount(0.9, 3.0, 1.0) == pytest.approx(0.45)
    # Now the fast tier has the lower latency: 0.675 is the middle of 0.45 and 0.9.
    assert search.amount(0.45, 1.0, 2.0) == pytest.approx(0.225)
    assert search.amount(0.675, 2.0, 1.0) == pytest.approx(0.1125)
    # The latencies differ by less than 5 %.
    assert search.amount(0.5625, 1.0, 1.04) == 0.0


def test_the_search_begins_again_if_the_balance_has_moved() -> None:
    search = Search(0.05)
    search.amount(0.9, 3.0, 1.0)
    search.amount(0.895, 1.0, 2.0)
    # The interval from 0.895 to 0.9 was smaller than EPSILON, 0.01, so its upper end is 1 again.
    assert search.amount(0.895, 1.0, 2.0) == pytest.approx((0.895 + 1) / 2 - 0.895)
    # If the share is above the interval's upper end, this end becomes 1, too.
    search = Search(0.05)
    search.amount(0.5, 3.0, 1.0)
    assert search.amount(0.6, 1.0, 2.0) == pytest.approx(0.2)


def test_while_the_fast_tier_is_faster_promotions_are_limited() -> None:
    # The fast tier has 60 % of the accesses. The middle of 0.6 and 1 is 0.8, so pages with 20 % of
    # the accesses are promoted: all ten pages of cell 0.
    assert Balance(Modified()).tick(seen(1.0, 2.0)) == [DOWN, UP]
    # The same moves are requested after a tick in which the fast tier had the higher latency. That
    # tick made 0.6 the interval's upper end. Now the fast tier has the lower latency at this share,
    # so 0.6 becomes the lower end. The upper end must be larger than that, so it becomes 1 again.
    balance = Balance(Modified())
    balance.tick(seen(2.0, 1.0))
    assert balance.tick(seen(1.0, 2.0)) == [DOWN, UP]


def test_promotions_that_are_dropped_need_no_demotions() -> None:
    balanced = Balance(Modified()).tick(seen(1.0, 1.02))
    # The latencies differ by less than 5 %, so cell 0 is not promoted. The demotion of the ten
    # pages of cell 1 would only make room for this promotion, so it is dropped, too.
    assert balanced == []


def test_while_the_latencies_are_balanced_even_unused_pages_stay() -> None:
    unused = observation([0, 0, 5, 2], [0, 10, 10, 0], latencies_ns=(1.0, 1.02))
    assert Balance(Modified()).tick(unused) == []


def test_while_the_fast_tier_is_slower_hot_pages_are_demoted() -> None:
    # The middle of 0 and 0.6 is 0.3: pages with 30 % of the accesses are demoted. A page of cell 2,
    # the hottest cell, has 5 % of them, so six of its pages are demoted.
    assert Balance(Modified()).tick(seen(2.0, 1.0)) == [MoveRequest(2, 1, 6)]
    # Without a search, all pages that can be moved are demoted.
    everything = [MoveRequest(2, 1, 10), MoveRequest(1, 1, 10)]
    assert Balance(Modified(), None).tick(seen(2.0, 1.0)) == everything


@dataclass
class Delayer(Modified):
    """A reactor whose observation takes five seconds at each tick."""

    def delay_ns(self) -> float:
        return 5e9


def test_the_training_is_delayed_if_the_modified_policy_delays_it() -> None:
    delaying = balance(Delayer())
    assert isinstance(delaying, DelayingReactor)
    assert delaying.tick(seen(1.0, 2.0)) == [DOWN, UP]
    assert delaying.delay_ns() == 5e9
    assert not isinstance(balance(Modified()), DelayingReactor)


@pytest.mark.parametrize(("name", "delays"), [("tpp+colloid", True), ("memtis+colloid", False)])
def test_hint_faults_delay_the_training_under_tpp_only(name: str, delays: bool) -> None:
    found = policy(name)
    assert isinstance(found, Reactive)
    reactors = [reactor for _, reactor in found.reactors(toy_profile())]
    assert [isinstance(one, DelayingReactor) for one in reactors] == [delays] * len(reactors)


def test_requests_are_cut_at_the_amount() -> None:
    weight = np.array([0.02, 0.0, 0.05, 0.01])
    requests = [MoveRequest(0, 0, 10), MoveRequest(1, 0, 10), MoveRequest(2, 0, 10)]
    assert first_of(requests, weight, 0.31) == [*requests[:2], MoveRequest(2, 0, 2)]
    assert first_of(requests, weight, 0.05) == [MoveRequest(0, 0, 2)]
    assert first_of(requests[1:], weight, 0.0) == [MoveRequest(1, 0, 10)]


@pytest.mark.parametrize("base", ["tpp", "memtis"])
def test_each_reactor_of_the_modified_policy_is_balanced(base: str) -> None:
    both = policy(base), policy(f"{base}+colloid")
    assert all(isinstance(one, Reactive) for one in both)
    plain, balanced = (dict(one.reactors(toy_profile())) for one in both)  # type: ignore[attr-defined]
    assert set(balanced) == {f"{how}, {end}" for how in plain for end in ("delta 0.05", "no limit")}
    for how, reactor in plain.items():
        assert balanced[f"{how}, no limit"].interval_ns == reactor.interval_ns
    plans = [one.plan(toy_profile(), two_tiers(), 7 * PAGE) for one in both]
    assert plans[1].policy == f"{base}+colloid"
    assert plans[1].layout.regions == plans[0].layout.regions


@pytest.mark.parametrize(("base", "faults_per_step"), [("memtis", 0.0), ("tpp", 0.5)])
def test_balance_gains_time_only_if_accesses_to_both_tiers_overlap(
    base: str, faults_per_step: float
) -> None:
    # One stretch of one second reads 40 tensors, 3 GB in all, and all of them fit in fast memory.
    # At 3 GB/s, the reads take the whole second. If a quarter of the pages is slow, each tier is
    # busy for 3/4 of a second. TPP scans at the first boundary that is at least a second after the
    # last scan, which is every other boundary here. So each slow page faults in every other step.
    pages = 3 * 10**9 // LAP_PAGE // 40
    profile = lap(1, *(Life(pages, (0,)) for _ in range(40)))
    tiers = Tiers((Tier((0,), 0, 3e9, 3e9), Tier((1,), 0, 1e9, 1e9)), 1e10, "toy")
    faults_s = 10 * pages * faults_per_step * HINT_FAULT_NS / 1e9
    for overlap, seconds in ((Overlap.TIERS, 0.75 + faults_s), (Overlap.COMPUTE, 1.0)):
        chosen = replace(tiers, overlap=overlap)
        plain, balanced = (
            simulate(profile, policy(name), chosen, 10**10, steps_max=30).step_seconds
            for name in (base, f"{base}+colloid")
        )
        assert plain == pytest.approx(1.0)
        assert balanced == pytest.approx(seconds, rel=0.05), overlap
