# SPDX-License-Identifier: Apache-2.0
"""Predict a steady step under a plan, from the plan's residency."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from sentineld.model.arrays import Mask
from sentineld.model.energy import energy_of
from sentineld.model.plan import Plan, Prediction
from sentineld.model.profile import Profile
from sentineld.model.tiers import Tiers
from sentineld.model.timing import timing_of
from sentineld.plan.items import persistent, tensor_pages
from sentineld.plan.residency import (
    Residency,
    fast_shares,
    peak_fast_pages,
    residency,
    served_pages,
)
from sentineld.plan.timed import births_ns


def unpredicted() -> Prediction:
    """A placeholder prediction for a plan that is not complete yet."""
    return Prediction(0, 0, 0, 0, 0.0)


def predicted(
    plan: Plan, profile: Profile, tiers: Tiers, found: Residency | None = None
) -> Prediction:
    """Predict a steady step with the timing model, assuming that every move is in time, except for
    the promotions that are late by plan (Plan.late). The process is assumed not to wait for these
    promotions, and they are too late for any access. They still count as promoted bytes and in the
    peak.

    Prediction.fast_share counts only page accesses that are attributed to tensors.

    found: the plan's residency, if the caller has already computed it.
    """
    found = found or residency(plan, profile)
    timely = _without_late(plan, profile) if plan.late.any() else found
    worth, served = served_pages(profile, timely)
    slow = 1 - fast_shares(profile, timely)
    times_ns = timing_of(tiers).stretch_ns(profile, slow) + births_ns(plan, profile, tiers)
    sizes = plan.moves["bytes"].astype(np.int64)
    up = plan.moves["tier"] == 0
    total = float(worth.sum())
    return Prediction(
        step_ns=int(times_ns.sum()),
        promoted_bytes=int(sizes[up].sum()),
        demoted_bytes=int(sizes[~up].sum()),
        peak_fast_bytes=int(peak_fast_pages(plan, profile, found).max(initial=0))
        * profile.page_bytes,
        fast_share=float(served.sum()) / total if total else 0.0,
        access_joules=energy_of(tiers).access_joules(profile, slow),
    )


def _without_late(plan: Plan, profile: Profile) -> Residency:
    """The residency in a steady step in which no late promotion takes place. Until the next
    demotion, the pages then stay slow, also across the step's end."""
    kept = plan.moves[~plan.late]
    found = residency(replace(plan, moves=kept, late=plan.late[:0]), profile)
    # Until the first move, a persistent page is on the tier on which it ended the previous step.
    unmoved: Mask = np.cumsum(found.moving, axis=0) - found.moving == 0
    unmoved &= persistent(profile)[found.tensor]
    return replace(found, tier=np.where(unmoved, found.end_tier, found.tier))


def initial_tiers(plan: Plan, profile: Profile) -> npt.NDArray[np.uint8]:
    """(T,), for Plan.initial_tier: the tier on which Plan.initial puts most pages of each tensor;
    255 if Plan.initial does not contain the tensor."""
    page = profile.page_bytes
    tiers = np.full(len(profile.tensors), 255, np.uint8)
    rows = np.flatnonzero(profile.tensors["slot"] < 0)
    start = (profile.tensors["address"][rows] - np.uint64(profile.heap_base)).astype(np.int64)
    start = start // page * page
    end = start + tensor_pages(profile)[rows] * page
    low = plan.initial["offset"].astype(np.int64)
    high = low + plan.initial["bytes"].astype(np.int64)
    for at, row in enumerate(rows.tolist()):
        shared = np.minimum(end[at], high) - np.maximum(start[at], low)
        inside = shared > 0
        if inside.any():
            most = np.bincount(plan.initial["tier"][inside], shared[inside])
            tiers[row] = int(np.argmax(most))
    return tiers
