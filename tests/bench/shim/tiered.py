# SPDX-License-Identifier: Apache-2.0
"""Measures the arena and the charged fast memory of a training that the real daemon manages on
emulated tiers."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from tests.bench.background import repeat_in_background
from tests.bench.shim.coverage import coverage
from tests.bench.shim.residency import resident_arena_bytes
from tests.bench.training.managed import ManagedTraining, Setup
from tests.bench.training_process import pinned

POLICY = "auto"
TIERS = "emulated:cxl"
SETTLING_STEPS = 3
"""After this many steps, all pages that were born before the plan became live are where the plan
places them."""
METERED_STEPS = 3
LOOK_EVERY_S = 0.005


def measure_two_tiers(model: str, plain_losses: list[str], folder: Path) -> dict[str, Any]:
    """Run a training under a plan that moves pages and divides the arena into regions by tier, and
    return the measurements. The budget is 20 % of the peak.

    plain_losses: losses of the same training without the shim. Losses are compared up to the
        end of the shorter list.
    Raises RuntimeError, OSError or SentinelError if the training cannot be measured.
    """
    setup = Setup(POLICY, TIERS, prefix=pinned(min(os.sched_getaffinity(0))))
    managed = ManagedTraining(model, setup, folder)
    try:
        if note := managed.manage():
            raise RuntimeError(f"{model} under {POLICY}: {note}")
        managed.training.steps(SETTLING_STEPS)
        plan, profile = managed.saved()
        resident_bytes = [0]

        def look() -> None:
            resident_bytes.append(resident_arena_bytes(managed.training.pid))
            time.sleep(LOOK_EVERY_S)

        with repeat_in_background(look):
            metered = managed.meter(METERED_STEPS)
        session, covered = managed.session(), coverage(plan.layout, profile)
        charged = max(step["charged_bytes_max"] for step in metered)
        count = min(len(managed.training.losses), len(plain_losses))
        return {
            "policy": POLICY,
            "resident_bytes": max(resident_bytes),
            "arena_bytes": plan.layout.arena_bytes,
            "peak_bytes": covered.peak_bytes,
            "resident_over_peak": max(resident_bytes) / covered.peak_bytes,
            "planned_share": covered.planned_share,
            "charged_bytes": charged,
            "budget_bytes": session["budget_bytes"],
            "charged_over_budget": charged / session["budget_bytes"],
            "diverged_steps": session["diverged_steps"],
            "losses_equal": managed.training.losses[:count] == plain_losses[:count],
        }
    finally:
        managed.close()
