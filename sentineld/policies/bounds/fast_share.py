# SPDX-License-Identifier: Apache-2.0
"""The most that any plan could serve fast, at a budget and a rate of migration.

A true upper bound on the share of sampled page accesses, for stretch times as
profiled, by Lagrangian relaxation (relax.py, generous): whatever prices it ends
with, weak duality makes it a bound. It gives every plan more than it can have:

- a page that is fast at any moment of a stretch serves that stretch fast;
- pages take up room only at boundaries: tensors that are born and die between
  two of them cost nothing, and so are always served fast;
- there is no fragmentation, no page is counted twice while in flight, and
  tensors can be split between the tiers at any point, at birth, too.

It says nothing of a plan that makes the process wait: a stall gives migration
time. Then rate x time grows by the stall, and so does the bound.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sentineld.model.profile import Kind, Profile
from sentineld.plan.items import access_pages, chunks, lifetimes, tensor_pages
from sentineld.policies.lp.relax import Capacities, relax

ROUNDS = 300


@dataclass(frozen=True)
class Bound:
    """fast_share: 0..1, no plan serves more of the attributed page accesses fast. fixed_share: nor
    does any placement without moves."""

    fast_share: float
    fixed_share: float


def best_share(
    profile: Profile, budget_bytes: int, bytes_per_s: float, rounds: int = ROUNDS
) -> Bound:
    """The bound. bytes_per_s: of moves in both directions together. More rounds: tighter."""
    page, count = profile.page_bytes, profile.stretch_count
    worth = access_pages(profile)
    total = float(worth.sum())
    if not total:
        return Bound(1.0, 1.0)
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
    return Bound(
        fast_share=min(1.0, (served + at_rate.bound) / total),
        fixed_share=min(1.0, (served + fixed.bound) / total),
    )
