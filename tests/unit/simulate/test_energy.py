# SPDX-License-Identifier: Apache-2.0
"""The energy of simulated steps, compared with hand-computed figures."""

from __future__ import annotations

import numpy as np
import pytest

from sentineld.host.presets import preset_tiers
from sentineld.model.energy import (
    COPY_BYTES_PER_S,
    CORE_W,
    WAITING_CORE_W,
    EnergyModel,
    energy_of,
)
from sentineld.policies.registry import policy
from sentineld.simulate.energy import fast_only_joules, step_joules
from sentineld.simulate.replay import Step
from sentineld.simulate.simulate import Outcome, simulate
from sentineld.simulate.world import Counts
from tests.unit.plan.toys import PAGE, large_profile
from tests.unit.trainer import MIB
from tests.unit.workloads import Network, profiled

THREADS = 2
CXL, NVME = (energy_of(preset_tiers(name, THREADS)) for name in ("cxl", "nvme"))
COUNTS = Counts(stall_ns=1e9, promoted_pages=3, demoted_pages=5, busy_ns=0.5e9)
STEP = Step(10e9, 2e9, COUNTS, np.zeros(0), slow_joules=7.0)
"""A step of 10 s: 1 s of stalls, 2 s of delays by slow pages, moves of 8 pages."""


def bytes_joules(model: EnergyModel) -> float:
    accesses = float(model.fast_joules(large_profile()).sum())
    return accesses + 7.0 + model.moved_joules(3 * PAGE, 5 * PAGE)


def test_a_step_on_tiers_of_memory() -> None:
    found = step_joules(STEP, large_profile(), CXL, THREADS)
    copying_s = 8 * PAGE / COPY_BYTES_PER_S
    cores = (THREADS * 9 + copying_s) * CORE_W + THREADS * WAITING_CORE_W
    assert found == pytest.approx(cores + bytes_joules(CXL))


def test_a_step_on_paged_tiers() -> None:
    found = step_joules(STEP, large_profile(), NVME, THREADS)
    cores = THREADS * 7 * CORE_W + THREADS * 3 * WAITING_CORE_W
    assert found == pytest.approx(cores + bytes_joules(NVME))


NETWORK = Network(blocks=3, weight_bytes=MIB, activation_bytes=MIB, bytes_per_s=4e9)
TRAINING = profiled(NETWORK)[0]


def simulated(name: str, tiers: str) -> Outcome:
    return simulate(TRAINING, policy(name), preset_tiers(tiers, 1), 4 * MIB, threads=1)


def test_all_fast_takes_the_least_energy() -> None:
    found = simulated("fast-only", "cxl")
    assert found.joules == pytest.approx(found.fast_only_joules)
    model = energy_of(preset_tiers("cxl", 1))
    expected = fast_only_joules(found.fast_only_seconds, TRAINING, model, 1)
    assert found.fast_only_joules == pytest.approx(expected)


@pytest.mark.parametrize("tiers", ["cxl", "optane", "nvme"])
def test_all_slow_takes_the_energy_of_all_slow_accesses(tiers: str) -> None:
    found, model = simulated("slow-only", tiers), energy_of(preset_tiers(tiers, 1))
    assert found.joules is not None
    slow_s = found.step_seconds - found.fast_only_seconds
    waiting_s = slow_s if model.paged else 0.0
    cores = (found.step_seconds - waiting_s) * CORE_W + waiting_s * WAITING_CORE_W
    accesses = model.access_joules(TRAINING, np.ones(len(TRAINING.accesses)))
    assert found.joules == pytest.approx(cores + accesses, rel=1e-6)


def test_a_plan_takes_less_energy_than_all_slow() -> None:
    slow, ours = simulated("slow-only", "cxl"), simulated("sentinel+spill", "cxl")
    assert slow.joules is not None
    assert ours.joules is not None
    assert ours.fast_only_joules == slow.fast_only_joules
    assert ours.fast_only_joules is not None
    assert ours.fast_only_joules < ours.joules < slow.joules


def test_memory_mode_pays_for_its_fills() -> None:
    found = simulated("memory-mode", "cxl")
    assert found.joules is not None
    assert found.fast_only_joules is not None
    model = energy_of(preset_tiers("cxl", 1))
    moved = model.moved_joules(found.bytes_promoted, found.bytes_demoted)
    extra_s = found.step_seconds - found.fast_only_seconds
    assert found.joules - found.fast_only_joules == pytest.approx(moved + extra_s * CORE_W)


def test_without_the_number_of_threads_there_is_no_figure() -> None:
    found = simulate(TRAINING, policy("fast-only"), preset_tiers("cxl", 1), 4 * MIB)
    assert found.joules is None
    assert found.fast_only_joules is None
