# SPDX-License-Identifier: Apache-2.0
"""Policies `tpp+colloid` and `memtis+colloid`: balance the loaded access latencies of the tiers.

Based on Colloid (Vuppalapati and Agarwal, SOSP 2024), which modifies other tiering systems. These
systems assume that the fast tier always has the lower latency. Under load, this may not be true: if
more accesses are outstanding on a tier than its bandwidth can serve, the accesses wait. At each
tick, Colloid compares the mean latencies of the accesses to both tiers. While the fast tier's
latency is lower, hot pages are promoted as usual. While the slow tier's latency is lower, nothing
is promoted, and hot pages are demoted. If the latencies differ by less than `delta`, a share of the
fast tier's latency, no hot page moves. Otherwise, a binary search looks for the share of all
accesses that the fast tier should serve. At each tick, enough hot pages move to bring the share to
the middle of the search interval. If the interval becomes shorter than `epsilon`, its upper end is
reset to 1 if the share has to rise, or its lower end to 0 if the share has to fall, because the
share at which the latencies are equal may have changed. The search, delta and epsilon are those of
the authors' fork of HeMem. Their fork of Linux, on which `tpp+colloid` is modelled, only compares
the latencies; it does not limit the number of pages that move.

The modified policy chooses the promotions. Colloid keeps the first of them, as many as are needed
to bring the share to the middle of the search interval. The modified policy's demotions of cold
pages remain, except for those that would only make room for promotions that Colloid drops. Hot
pages are demoted in the order of their accesses since the last tick, the hottest first. TPP's hint
faults delay the training under `tpp+colloid`, too.

Latencies can depend on the load only if accesses to both tiers overlap, that is, under the variant
`overlap = "tiers"` of the timing model; simulate/loaded_latency.py derives them. Under the other
variants, the fast tier's latency is always lower, so Colloid can only limit the number of pages
that a tick promotes. Latencies are means over a tick's interval; the original smooths them by
moving averages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sentineld.model.arrays import Floats
from sentineld.model.plan import Plan
from sentineld.model.profile import Profile
from sentineld.model.tiers import Tiers
from sentineld.plan.policy import DelayingReactor, MoveRequest, Observation, Reactive, Reactor
from sentineld.policies.registry import policy, register
from sentineld.policies.rivals.reactive import move_requests, total

SETTINGS: tuple[float | None, ...] = (0.05, None)
"""Values of delta: the latencies count as balanced if they differ by less than this share of the
fast tier's latency. The published value comes first. None: the latencies are only compared, and no
search limits the number of pages that move."""

EPSILON = 0.01


@register("tpp+colloid")
@register("memtis+colloid")
@dataclass
class Colloid:
    """The policies `tpp+colloid` and `memtis+colloid`; see the module's docstring."""

    name: str

    charges_budget: bool = False

    def plan(self, profile: Profile, tiers: Tiers, budget_bytes: int) -> Plan:
        """The plan of the modified policy; see Policy."""
        return replace(self._modified().plan(profile, tiers, budget_bytes), policy=self.name)

    def reactors(self, profile: Profile) -> Sequence[tuple[str, Reactor]]:
        """Each of the modified policy's reactors with each of SETTINGS; see Reactive."""
        return [
            (f"{words}, {'no limit' if delta is None else f'delta {delta:g}'}", balance(one, delta))
            for delta in SETTINGS
            for words, one in self._modified().reactors(profile)
        ]

    def _modified(self) -> Reactive:
        found = policy(self.name.partition("+")[0])
        assert isinstance(found, Reactive)
        return found


class Search:
    """The binary search for the share of the accesses that the fast tier should serve."""

    def __init__(self, delta: float) -> None:
        """delta: see SETTINGS."""
        self._delta = delta
        self._low, self._high = 0.0, 1.0

    def amount(self, share: float, fast_ns: float, slow_ns: float) -> float:
        """The amount by which the share should change; 0: the latencies are balanced.

        share: share of the accesses that the fast tier serves now. fast_ns, slow_ns: the tiers'
        latencies.
        """
        if abs(fast_ns - slow_ns) < self._delta * fast_ns:
            return 0.0
        rises = fast_ns < slow_ns
        if rises:
            self._low, self._high = share, self._high if share < self._high else 1.0
        else:
            self._low, self._high = self._low if self._low < share else 0.0, share
        if self._high - self._low < EPSILON:
            self._low, self._high = (self._low, 1.0) if rises else (0.0, self._high)
        return abs((self._low + self._high) / 2 - share)


class Balance:
    """A reactor whose moves of hot pages depend on the tiers' latencies."""

    def __init__(self, modified: Reactor, delta: float | None = SETTINGS[0]) -> None:
        """modified: a reactor of the policy that Colloid modifies (TPP or MEMTIS). delta: see
        SETTINGS."""
        self.interval_ns = modified.interval_ns
        self._modified = modified
        self._search = None if delta is None else Search(delta)

    def tick(self, observation: Observation) -> list[MoveRequest]:
        """Limit the modified policy's promotions, or demote hot pages instead; see Reactor."""
        wanted = self._modified.tick(observation)
        ups = [request for request in wanted if request.tier == 0]
        downs = [request for request in wanted if request.tier != 0]
        fast_ns, slow_ns = observation.latencies_ns.tolist()
        weight = observation.accesses / max(_accesses(observation), 1e-300)
        amount = 1.0
        if self._search is not None:
            share = float(weight @ observation.fast)
            amount = self._search.amount(share, fast_ns, slow_ns)
        # If amount is 0, do not call first_of(): even then, it would return the requests for pages
        # without accesses, because these pages do not count towards the limit.
        kept = first_of(ups, weight, amount) if amount > 0 and fast_ns < slow_ns else []
        dropped = total(ups) - total(kept)
        each_page = np.ones(len(weight))
        downs = first_of(downs, each_page, total(downs) - dropped)
        hot = list[MoveRequest]()
        if amount > 0 and fast_ns > slow_ns:
            hottest = np.flatnonzero((weight > 0) & (observation.fast > 0))
            hottest = hottest[np.argsort(-weight[hottest], kind="stable")]
            limit = observation.move_pages
            hot = move_requests(hottest.tolist(), observation.fast, 1, limit)
            hot = first_of(hot, weight, amount)
            taken = {request.cell for request in hot}
            downs = [request for request in downs if request.cell not in taken]
        return [*hot, *downs, *kept]


class DelayingBalance(Balance):
    """A Balance of a reactor whose observation delays the training, as TPP's hint faults do."""

    def __init__(self, modified: DelayingReactor, delta: float | None = SETTINGS[0]) -> None:
        """See Balance."""
        super().__init__(modified, delta)
        self._delaying = modified

    def delay_ns(self) -> float:
        """The delay that the modified reactor causes; reading latencies takes no time. See
        DelayingReactor."""
        return self._delaying.delay_ns()


def balance(modified: Reactor, delta: float | None = SETTINGS[0]) -> Balance:
    """The Balance of a reactor. It delays the training if and only if the reactor does. delta:
    see SETTINGS."""
    if isinstance(modified, DelayingReactor):
        return DelayingBalance(modified, delta)
    return Balance(modified, delta)


def _accesses(observation: Observation) -> float:
    """Number of accesses to all pages since the previous tick."""
    pages = observation.fast + observation.slow
    return float(observation.accesses @ pages)


def first_of(requests: Iterable[MoveRequest], weight: Floats, amount: float) -> list[MoveRequest]:
    """The first requests whose pages together weigh at most `amount`. The last of them may be cut
    to fewer pages.

    weight: (C,), the weight of a page of each cell: the share of all accesses that goes to the
    page, or 1 to limit the number of pages. amount: limit on the total weight.
    """
    found = list[MoveRequest]()
    for request in requests:
        each = float(weight[request.cell])
        pages = request.pages
        if each > 0:
            pages = min(pages, int(amount / each + 1e-9))  # despite rounding errors
        if pages <= 0:
            break
        found.append(request._replace(pages=pages))
        amount -= pages * each
        if pages < request.pages:
            break
    return found
