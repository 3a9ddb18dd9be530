# SPDX-License-Identifier: Apache-2.0
"""Which dead tensors' pages stay for the next tensor that is born on them.

A plan that gives all fast pages back when their tensor dies pays a page fault for
each page of the next one: as much as reading that page from slow memory, and for
short-lived tensors the most of what a plan costs. Where fast memory is not full
between death and birth, keeping them costs nothing.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sentineld.plan.items import Integers
from sentineld.plan.model import SLOT_DROP, Plan
from sentineld.plan.residency import occupied_pages, residency
from sentineld.plan.turnover import first_moments, slot_flags, turnover
from sentineld.profile.model import Profile


def keep(plan: Plan, profile: Profile, limit_pages: int) -> Plan:
    """The plan with fewer drops: those are left out whose pages fit in what fast memory is free
    until the next birth on them, the shortest times first. limit_pages: of fast memory.

    What is moved is dropped as before: its pages are not where the next one wants them.
    """
    found = residency(plan, profile)
    moments = int(first_moments(profile)[-1])
    flags = slot_flags(plan.layout, profile)
    dropped = (flags & SLOT_DROP) != 0
    tenancies = turnover(plan.layout, profile)
    free = limit_pages - occupied_pages(profile, found, in_flight=True)
    free -= tenancies.kept_pages(dropped, moments)
    may = dropped.copy()
    may[found.tensor[found.moving.any(axis=0)]] = False
    kept = np.zeros(len(dropped), np.bool_)
    for tensor, which in _by_gap(tenancies.tensor, tenancies.pages * tenancies.gap):
        if not may[tensor]:
            continue
        used = tenancies.used(which, moments)
        if np.all((used <= free) | (used == 0)):
            free -= used
            kept[tensor] = True
    slots = plan.layout.slots.copy()
    slots["flags"][profile.tensors["slot"][kept]] &= ~np.uint32(SLOT_DROP)
    return replace(plan, layout=replace(plan.layout, slots=slots))


def _by_gap(tensor: Integers, cost: Integers) -> list[tuple[int, Integers]]:
    """(tensor, its tenancies), the least cost first."""
    order = np.argsort(tensor, kind="stable")
    begins = np.flatnonzero(np.diff(tensor[order], prepend=-1))
    costs = np.add.reduceat(cost[order], begins) if len(begins) else cost
    groups = np.split(order, begins[1:]) if len(begins) else []
    return [(int(tensor[groups[at][0]]), groups[at]) for at in np.argsort(costs, kind="stable")]
