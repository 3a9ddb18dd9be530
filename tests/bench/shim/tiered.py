# SPDX-License-Identifier: Apache-2.0
"""A training under the real daemon on emulated tiers: how much of it is fast."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from tests.bench.meanwhile import again_and_again
from tests.bench.shim.coverage import coverage
from tests.bench.shim.residency import resident_arena_bytes
from tests.bench.training.contestant import Contestant

POLICY = "auto"
TIERS = "cxl"
SETTLING_STEPS = 3
"""Until pages that were elsewhere when the plan began are where it wants them."""
METERED_STEPS = 3
LOOK_EVERY_S = 0.005


def grouped(model: str, plain_losses: list[str], folder: Path) -> dict[str, Any]:
    """Replay a plan of a fifth of the peak, whose arena is grouped by tier, its pages moving.

    plain_losses: of the same training without the shim, as many as there are. Raises RuntimeError,
    OSError, SentinelError.
    """
    one = Contestant(model, POLICY, TIERS, min(os.sched_getaffinity(0)), folder)
    try:
        if note := one.manage():
            raise RuntimeError(f"{model} under {POLICY}: {note}")
        one.training.steps(SETTLING_STEPS)
        plan, profile = one.saved()
        seen = [0]

        def look() -> None:
            seen.append(resident_arena_bytes(one.training.pid))
            time.sleep(LOOK_EVERY_S)

        with again_and_again(look):
            metered = one.meter(METERED_STEPS)
        session, covered = one.session(), coverage(plan.layout, profile)
        charged = max(step["charged_bytes_max"] for step in metered)
        count = min(len(one.training.losses), len(plain_losses))
        return {
            "policy": POLICY,
            "resident_bytes": max(seen),
            "arena_bytes": plan.layout.arena_bytes,
            "peak_bytes": covered.peak_bytes,
            "resident_over_peak": max(seen) / covered.peak_bytes,
            "planned_share": covered.planned_share,
            "charged_bytes": charged,
            "budget_bytes": session["budget_bytes"],
            "charged_over_budget": charged / session["budget_bytes"],
            "diverged_steps": session["diverged_steps"],
            "losses_equal": one.training.losses[:count] == plain_losses[:count],
        }
    finally:
        one.close()
