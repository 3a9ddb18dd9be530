# SPDX-License-Identifier: Apache-2.0
"""The simulator and emulated tiers in virtual time give the same step times for a plan."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from functools import cache
from statistics import median

import numpy as np
import pytest

from sentineld.host.presets import preset_tiers
from sentineld.model.plan import SLOT_PLANNED, Plan
from sentineld.model.profile import Profile
from sentineld.model.tiers import Overlap
from sentineld.plan.drops import with_drops
from sentineld.plan.stall_trial import STEPS_PER_BOUNDARY, stall_boundaries
from sentineld.plan.turnover import turnover
from sentineld.policies.registry import policy
from sentineld.simulate.simulate import simulate
from tests.unit.shim.virtual import Training
from tests.unit.trainer import MIB
from tests.unit.workloads import Network, profiled

pytest.importorskip("scipy")

CUTS = tuple(range(4, 100, 4))
NETWORKS = {
    "activations": Network(blocks=6, weight_bytes=MIB // 4, activation_bytes=2 * MIB),
    "weights": Network(
        blocks=6, weight_bytes=2 * MIB, activation_bytes=MIB // 2, bytes_per_s=1.6e9
    ),
    "both": Network(blocks=12, weight_bytes=MIB, activation_bytes=MIB, bytes_per_s=2e9),
}
WITHIN = 0.02
UNTIL_STEADY, STEPS = 6, 4


@cache
def profile_of(network: str) -> Profile:
    return profiled(NETWORKS[network], CUTS)[0]


@cache
def plan_of(network: str, name: str, overlap: Overlap) -> Plan:
    profile, tiers = profile_of(network), replace(preset_tiers("cxl", 1), overlap=overlap)
    return policy(name).plan(profile, tiers, int(0.3 * profile.peak_bytes))


def dropping_all(plan: Plan, profile: Profile) -> Plan:
    """The same plan, but every dead page is dropped. The waits can stay as they are, because drops
    only free fast memory."""
    slot = np.flatnonzero(plan.layout.slots["flags"] & SLOT_PLANNED)
    slots = plan.layout.slots[slot]
    first = slots["offset"].astype(np.int64) // profile.page_bytes
    pages = -(-slots["bytes"].astype(np.int64) // profile.page_bytes)
    layout = with_drops(plan.layout, slot, first, pages, profile.page_bytes)
    kept, gone = (turnover(one, profile).births(profile).sum() for one in (plan.layout, layout))
    assert kept < gone
    return replace(plan, layout=layout)


@pytest.mark.parametrize("overlap", [Overlap.NONE, Overlap.COMPUTE])
@pytest.mark.parametrize("name", ["static", "sentinel", "auto", "auto, nothing kept"])
@pytest.mark.parametrize("network", NETWORKS)
def test_the_simulator_and_emulated_tiers_agree(
    harness: ctypes.CDLL, network: str, name: str, overlap: Overlap
) -> None:
    profile, by = profile_of(network), policy(name.split(",")[0])
    tiers = replace(preset_tiers("cxl", 1), overlap=overlap)
    plan = plan_of(network, by.name, overlap)
    if "nothing kept" in name:
        plan = dropping_all(plan, profile)
    expected = simulate(profile, by, tiers, plan.budget_bytes, plan=plan)
    training = Training(harness, plan, profile, tiers)
    trials = STEPS_PER_BOUNDARY * len(stall_boundaries(plan))
    steps = training.run(UNTIL_STEADY + trials + STEPS)[-STEPS:]
    training.close()
    fast_s = expected.fast_only_seconds
    owed_s = median(step.owed_ns for step in steps) / 1e9
    waited_s = median(step.waited_ns for step in steps) / 1e9
    step_s = median(step.ns for step in steps) / 1e9
    moved_bytes = median(step.moved_bytes for step in steps)
    expected_moved_bytes = expected.bytes_promoted + expected.bytes_demoted
    print(
        f"{network}, {name}: all fast {fast_s:.4f} s; step {step_s:.4f}, "
        f"simulated {expected.step_seconds:.4f}; owed {owed_s:.4f}, waited {waited_s:.4f}, "
        f"simulated {expected.step_seconds - fast_s - expected.stall_seconds:.4f}, "
        f"{expected.stall_seconds:.4f}; moved {moved_bytes / MIB:.1f} MiB, "
        f"simulated {expected_moved_bytes / MIB:.1f}"
    )
    assert (moved_bytes > 0) == (name != "static")
    # The tolerance is relative to the time that slow memory adds. A tolerance relative to the whole
    # step would be too lax.
    assert step_s - fast_s == pytest.approx(expected.step_seconds - fast_s, rel=WITHIN)
    assert moved_bytes == pytest.approx(expected_moved_bytes, rel=WITHIN)
