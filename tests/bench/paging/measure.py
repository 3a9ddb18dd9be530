# SPDX-License-Identifier: Apache-2.0
"""Measures a model in less memory than it needs; computes its bound and predicted step times."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

from sentineld.config import TierOverrides
from sentineld.machine.paged import PagedSubstrate
from sentineld.model.energy import energy_of
from sentineld.policies.bounds.step_time import bound_seconds
from tests.bench.paging.figures import POLICIES, RAM
from tests.bench.paging.needs import Needs
from tests.bench.paging.race import Settings, race
from tests.bench.training.measure import scaled_to, simulated

Json = dict[str, Any]


def measure(
    model: str,
    needs: Needs,
    fraction: float,
    contestants: list[str],
    settings: Settings,
    say: Callable[[str], None],
) -> Json:
    """Return the raw figures for figures.rows(). Raises RuntimeError, OSError or SentinelError if
    the model cannot be measured."""
    tiers = PagedSubstrate(TierOverrides(paged=str(settings.folder))).tiers()

    def say_which(text: str) -> None:
        say(f"{model} at {fraction:.0%}, {text}")

    found = race(model, needs, fraction, contestants, settings, say_which)
    ram_s = median(turn["step_s"] for turn in found[RAM]["turns"])
    for name in POLICIES:
        if name in found and not found[name]["note"]:
            plan, profile = found[name].pop("plan"), found[name].pop("profile")
            found[name]["predicted_s"] = simulated(plan, profile, ram_s, tiers).step_seconds
    fast_bytes = needs.fast_bytes(fraction)
    least_s = bound_seconds(scaled_to(needs.profile, ram_s), tiers, fast_bytes)
    slow = tiers.tiers[1]
    return {
        "bound_extra_s": least_s - ram_s,
        "access_joules": float(energy_of(tiers).fast_joules(needs.profile).sum()),
        "fast_bytes": fast_bytes,
        "tensor_peak_bytes": needs.profile.peak_bytes,
        "resident_bytes": needs.resident_bytes,
        "disk_read_bytes_per_s": slow.read_bytes_per_s,
        "disk_write_bytes_per_s": slow.write_bytes_per_s,
        "contestants": found,
    }
