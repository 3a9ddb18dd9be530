# SPDX-License-Identifier: Apache-2.0
"""The fast-share bound: an upper bound on any plan's fast share at the profiled stretch times.

The bound holds for a given budget, for a given migration bandwidth, for the profiled stretch times
and for the page accesses that were attributed to tensors. The bound comes from a Lagrangian
relaxation (relax() in policies/lp/relax.py, with generous=True). By weak duality, the bound holds
for any prices (Lagrange multipliers). The relaxation allows more than a real plan can do:

- if a page is fast at some moment of a stretch, all accesses to it in this stretch are served fast;
- pages take room only at boundaries: tensors that are born and die between two boundaries take no
  room, and all accesses to them are served fast;
- there is no fragmentation, a page in flight is charged once, and tensors can be
  split between the tiers at any page, even at birth.

The profiled stretch times are those with all memory fast. Waits, slow accesses and page births
lengthen a stretch and so give moves more time; the bound does not count this additional time. A
plan under which stretches take longer than profiled can therefore exceed the bound. The bound does
not apply to paged tiers, where the demotion of an unchanged page takes no time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sentineld.model.profile import Kind, Profile
from sentineld.plan.items import access_pages, chunks, lifetimes, tensor_pages
from sentineld.policies.lp.relax import Capacities, relax

ROUNDS = 300


@dataclass(frozen=True)
class FastShareBound:
    """Shares of the attributed page accesses, 0..1."""

    fast_share: float
    """At the profiled stretch times, no plan can serve a larger share from fast memory."""

    fixed_share: float
    """No plan without moves can serve a larger share from fast memory."""


def fast_share_bound(
    profile: Profile, budget_bytes: int, bytes_per_s: float, rounds: int = ROUNDS
) -> FastShareBound:
    """Compute the fast-share bound.

    bytes_per_s: migration bandwidth, both directions together.
    rounds: number of rounds of the relaxation; more rounds give a tighter bound.
    """
    page, count = profile.page_bytes, profile.stretch_count
    worth = access_pages(profile)
    total = float(worth.sum())
    if not total:
        return FastShareBound(1.0, 1.0)
    _, length = lifetimes(profile)
    transient = profile.tensors["kind"] != Kind.PERSISTENT
    free = transient & (length == 1)
    rows = np.flatnonzero(~free)
    served = float(worth[free[profile.accesses["tensor"]]].sum())
    items = chunks(profile, rows, int(tensor_pages(profile).max(initial=1)))
    room = np.full(count, budget_bytes / page)
    times = profile.stretches["time_ns"].astype(np.float64) / 1e9
    at_rate = relax(items, Capacities(room, times * bytes_per_s / page), rounds, generous=True)
    fixed = relax(items, Capacities(room, np.zeros(count)), rounds, generous=True)
    return FastShareBound(
        fast_share=min(1.0, (served + at_rate.bound) / total),
        fixed_share=min(1.0, (served + fixed.bound) / total),
    )
