# SPDX-License-Identifier: Apache-2.0
"""What a plan should do in a steady step, from the plan carried out on paper."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sentineld.plan.items import tensor_pages
from sentineld.plan.model import Plan, Prediction
from sentineld.plan.residency import charged_pages, residency, served_pages
from sentineld.profile.model import Profile
from sentineld.tiers import Tiers


def unpredicted() -> Prediction:
    """The prediction of a plan that is still being made."""
    return Prediction(0, 0, 0, 0, 0.0)


def predicted(plan: Plan, profile: Profile, tiers: Tiers) -> Prediction:
    """The plan's prediction.

    fast_share counts attributed page accesses. step_ns is the profiled step's
    time plus what the bytes served slow cost beyond fast ones, by the tiers'
    bandwidths; without these, the profiled time.
    """
    found = residency(plan, profile)
    worth, served = served_pages(profile, found)
    sizes = plan.moves["bytes"].astype(np.int64)
    up = plan.moves["tier"] == 0
    total = float(worth.sum())
    slow = np.where(worth > 0, 1 - served / np.maximum(worth, 1e-9), 0.0)
    return Prediction(
        step_ns=int(profile.stretches["time_ns"].sum() + _slow_ns(profile, tiers, slow)),
        promoted_bytes=int(sizes[up].sum()),
        demoted_bytes=int(sizes[~up].sum()),
        peak_fast_bytes=int(charged_pages(plan, profile, found).max(initial=0))
        * profile.page_bytes,
        fast_share=float(served.sum()) / total if total else 0.0,
    )


def initial_tiers(plan: Plan, profile: Profile) -> npt.NDArray[np.uint8]:
    """plan.initial_tier from plan.initial: the tier of most of each persistent tensor."""
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


def _slow_ns(profile: Profile, tiers: Tiers, slow: npt.NDArray[np.float64]) -> float:
    """slow: the part of each access row that the second tier serves."""
    if len(tiers.tiers) < 2:
        return 0.0
    fast_tier, slow_tier = tiers.tiers[:2]
    total = 0.0
    for name, fast_rate, slow_rate in (
        ("bytes_read", fast_tier.read_bytes_per_s, slow_tier.read_bytes_per_s),
        ("bytes_written", fast_tier.write_bytes_per_s, slow_tier.write_bytes_per_s),
    ):
        if fast_rate > 0 and slow_rate > 0:
            late = float((profile.accesses[name] * slow).sum())
            total += max(0.0, late / slow_rate - late / fast_rate) * 1e9
    return total
