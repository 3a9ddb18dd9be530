# SPDX-License-Identifier: Apache-2.0
"""Preconditions of policies."""

from __future__ import annotations

from sentineld.base.errors import SentinelError
from sentineld.base.units import format_bytes
from sentineld.model.profile import Profile
from sentineld.model.tiers import Tiers


def require(profile: Profile, tiers: Tiers, budget_bytes: int) -> None:
    """Raise SentinelError if a precondition does not hold.

    Required: two tiers, a known migration bandwidth, a budget of at least one page, and a profile
    with accesses.
    """
    if len(tiers.tiers) < 2:
        raise SentinelError(
            "no-second-tier", "there is only one memory tier", "see sentinelctl doctor"
        )
    if tiers.migration_bytes_per_s <= 0:
        raise SentinelError(
            "bad-config",
            "the migration bandwidth between the tiers is unknown",
            "set tiers.migration_bytes_per_s",
        )
    require_room(budget_bytes, profile.page_bytes)
    if not len(profile.accesses):
        raise SentinelError(
            "failed",
            "the profile holds no accesses",
            "load the kernel module or use torch.profiler",
        )


def require_room(budget_bytes: int, least_bytes: int = 0) -> None:
    """Raise SentinelError if the budget is less than least_bytes. budget_bytes is the session's
    budget minus the bytes of unmanaged tensors and minus Substrate.reserve_bytes(); it can be
    negative."""
    if budget_bytes < least_bytes:
        raise SentinelError(
            "failed",
            f"infeasible: only {format_bytes(max(budget_bytes, 0))} of fast memory remains"
            " for tensors",
            "give the process more fast memory",
        )


def scipy_missing(needed_by: str, instead: str = "") -> SentinelError:
    """The error if scipy is not installed. needed_by: name of the policy or bound that needs scipy.
    instead: a policy that does not need scipy."""
    hint = "apt install python3-scipy"
    return SentinelError(
        "failed",
        f"{needed_by} needs scipy, which is not installed",
        f"{hint}, or use the policy {instead}" if instead else hint,
    )
