# SPDX-License-Identifier: Apache-2.0
"""The reason for each tensor's placement, derived from the finished plan."""

from __future__ import annotations

import numpy as np

from sentineld.model.plan import SLOT_PLANNED, Plan
from sentineld.model.profile import Kind, Profile
from sentineld.plan.items import tensor_pages
from sentineld.plan.residency import ABSENT, Residency, places, residency


def reasons(plan: Plan, profile: Profile, found: Residency | None = None) -> tuple[str, ...]:
    """(T,): the reason for the placement of each tensor of the profile.

    found: the plan's residency, if the caller has already computed it.
    """
    found = found or residency(plan, profile)
    space, offset = places(plan, profile)
    pages = tensor_pages(profile)
    accessed = np.bincount(profile.accesses["tensor"], minlength=len(profile.tensors))
    alive = (found.tier != ABSENT) * found.pages
    fast = (found.tier == 0) * found.pages
    many = len(profile.tensors)
    alive_pages = np.bincount(found.tensor, alive.sum(axis=0), minlength=many)
    fast_pages = np.bincount(found.tensor, fast.sum(axis=0), minlength=many)
    moved = np.bincount(
        found.tensor, (found.moving * found.pages).sum(axis=0), minlength=many
    ) / np.maximum(pages, 1)
    region_of = {
        row: next((r.name for r in plan.layout.regions if r.offset <= at < r.offset + r.bytes), "")
        for row, at in enumerate(offset.tolist())
        if space[row] == 0
    }
    result = []
    for row, tensor in enumerate(profile.tensors):
        name = region_of.get(row, "")
        held = fast_pages[row] / alive_pages[row] if alive_pages[row] else 0.0
        if space[row] < 0:
            result.append(_unplanned(plan, profile, tensor))
        elif name == "pool":
            result.append(
                "short-lived (freed in the layer that allocates it): in the pool, which stays fast"
            )
        elif name == "short-lived":
            result.append(
                "short-lived (freed in the layer that allocates it): fast, and dropped at its death"
            )
        elif not accessed[row]:
            where = f"fast for {held:.0%} of its lifetime" if held > 0 else "slow"
            result.append(f"{where}: not accessed in the step")
        elif moved[row] > 0:
            kind = f"{name}, " if name else ""
            result.append(
                f"{kind}fast for {held:.0%} of its lifetime, moved {moved[row]:.1f} times per step:"
                " its accesses justify the moves"
            )
        elif held >= 1:
            result.append("fast for its whole lifetime: its accesses justify the fast memory")
        elif held > 0:
            result.append(f"{held:.0%} of its pages fast for the whole step, the others slow")
        else:
            result.append("slow: other tensors gain more from the same fast memory and moves")
    return tuple(result)


def _unplanned(plan: Plan, profile: Profile, tensor: np.void) -> str:
    if tensor["slot"] < 0:
        return "outside the shim's heap: not managed"
    planned = plan.layout.slots["flags"][tensor["slot"]] & SLOT_PLANNED
    if tensor["kind"] == Kind.PERSISTENT and not planned:
        return "outlives the step that allocates it: allocated from the heap"
    return "not in the plan: allocated from the heap"
