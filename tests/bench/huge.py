# SPDX-License-Identifier: Apache-2.0
"""Measures how fast `auto` plans a synthetic step of about 10,000 tensors and 1,000 stretches."""

from __future__ import annotations

import time
from typing import Any

from sentineld.base.errors import SentinelError
from sentineld.host.presets import preset_tiers
from sentineld.plan.check import verify
from sentineld.policies.registry import policy
from tests.bench.policy_figures import claim
from tests.unit.workloads import Network, profiled

NETWORK = Network(blocks=200, weights=8)
FRACTION = 0.2
GOAL_S = 30.0


def plan_huge_step() -> dict[str, Any]:
    """Plan the step; return its size, the planning time, and the predicted step time divided by the
    all-fast one."""
    profile, _ = profiled(NETWORK)
    budget_bytes = int(profile.peak_bytes * FRACTION)
    found: dict[str, Any] = {
        "tensors": len(profile.tensors),
        "stretches": profile.stretch_count,
        "plan_seconds": None,
        "predicted_over_fast_only": None,
        "note": "",
    }
    began_s = time.perf_counter()
    try:
        plan = policy("auto").plan(profile, preset_tiers("cxl", 1), budget_bytes)
    except SentinelError as error:
        return found | {"note": error.message}
    plan_s = time.perf_counter() - began_s
    verify(plan, profile, budget_bytes)
    fast_only_ns = float(profile.step_ns)
    return found | {
        "plan_seconds": plan_s,
        "predicted_over_fast_only": plan.predicted.step_ns / fast_only_ns,
        "note": "; ".join(plan.notes),
    }


def summary_line(found: dict[str, Any]) -> str:
    """Summarise the result in a line that states whether the goal is met."""
    what = f"a synthetic step of {found['tensors']} tensors and {found['stretches']} stretches"
    seconds = found["plan_seconds"]
    if seconds is None:
        return claim(f"{what} is planned ({found['note']})", holds=False)
    return claim(
        f"{what} is planned within {GOAL_S:.0f} s ({seconds:.1f} s, step "
        f"{found['predicted_over_fast_only']:.3f} of all-fast; {found['note']})",
        seconds <= GOAL_S,
    )
