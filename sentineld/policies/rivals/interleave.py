# SPDX-License-Identifier: Apache-2.0
"""Policy `interleave`: make a share of all tensors' bytes fast; try several shares, use the best.

Based on Linux's weighted interleaving (MPOL_WEIGHTED_INTERLEAVE, since 6.9) and on object-level
interleaving for training on CXL (arXiv 2405.14209). Persistent tensors are split: their first pages
are fast. It does not matter which pages are fast, because the timing model treats all pages of a
tensor alike. A tensor of the arena is born wholly on one tier. The arena's tensors are assigned to
the tiers in the order of birth so that the share of bytes born fast stays close to the tried share.
"""

from __future__ import annotations

import numpy as np

from sentineld.model.arrays import Integers, Mask
from sentineld.model.plan import Plan
from sentineld.model.profile import Profile
from sentineld.model.tiers import Tiers
from sentineld.plan.items import persistent, tensor_pages, transient
from sentineld.policies.registry import register
from sentineld.policies.require import require_room
from sentineld.policies.rivals.fixed import fixed_pages, fixed_plan
from sentineld.policies.shares import usable_pages

SHARES = tuple(part / 32 for part in range(33))
"""Shares that are tried. A share is skipped if its plan exceeds the budget."""


@register()
class Interleave:
    """Policy `interleave`; see the module's docstring."""

    name = "interleave"
    charges_budget = True

    def plan(self, profile: Profile, tiers: Tiers, budget_bytes: int) -> Plan:
        """Make a plan for each share that fits the budget, and return the plan with the shortest
        predicted step; see Policy. Raises SentinelError if the budget is negative; a share of 0
        fits any budget that is not negative."""
        require_room(budget_bytes)
        limit = usable_pages(budget_bytes, profile.page_bytes)
        best: Plan | None = None
        for share in SHARES:
            born_fast, persistent_fast = interleaved(profile, share)
            if fixed_pages(profile, born_fast, persistent_fast) > limit:
                continue
            notes = (f"{share:.1%} of all pages fast",)
            found = fixed_plan(
                self.name, profile, tiers, budget_bytes, born_fast, persistent_fast, notes
            )
            if best is None or found.predicted.step_ns < best.predicted.step_ns:
                best = found
        assert best is not None
        return best


def interleaved(profile: Profile, share: float) -> tuple[Mask, Integers]:
    """(which transient tensors are fast, number of fast pages of each persistent tensor), if this
    share (0..1) of all bytes is to be fast."""
    pages = tensor_pages(profile)
    fast = np.zeros(len(pages), np.bool_)
    owed = 0.0
    rows = np.flatnonzero(transient(profile))
    order = np.argsort(profile.tensors["birth_event"][rows], kind="stable")
    for row in rows[order].tolist():
        size = int(pages[row])
        owed += share * size
        if owed >= size / 2 and share > 0:
            fast[row] = True
            owed -= size
    whole = np.floor(pages * share + 1e-9).astype(np.int64)
    return fast, np.where(persistent(profile), whole, 0)
