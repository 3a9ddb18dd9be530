# SPDX-License-Identifier: Apache-2.0
"""What a policy that moves pages cannot do without."""

from __future__ import annotations

from sentineld.base.errors import SentinelError
from sentineld.base.units import format_bytes
from sentineld.model.profile import Profile
from sentineld.model.tiers import Tiers


def require(profile: Profile, tiers: Tiers, budget_bytes: int) -> None:
    """Raise SentinelError where there are no two tiers, no known rate between them, no page of fast
    memory, or nothing to plan by."""
    if len(tiers.tiers) < 2:
        raise SentinelError("no-second-tier", "there is one tier only", "see sentinelctl doctor")
    if tiers.migration_bytes_per_s <= 0:
        raise SentinelError(
            "bad-config",
            "the bandwidth between the tiers is not known",
            "set tiers.migration_bytes_per_s",
        )
    if budget_bytes < profile.page_bytes:
        raise SentinelError(
            "failed",
            f"infeasible: {format_bytes(max(budget_bytes, 0))} of fast memory are left for tensors",
            "give the process more fast memory",
        )
    if not len(profile.accesses):
        raise SentinelError(
            "failed", "the profile holds no accesses", "load the module or use torch.profiler"
        )
