# SPDX-License-Identifier: Apache-2.0
"""The energy model: hand-computed cases."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sentineld.host.presets import PRESETS, preset_tiers
from sentineld.model.energy import CORE_W, DRAM, MEDIA, WAITING_CORE_W, core_joules, energy_of
from sentineld.model.timing import CACHED_BYTES
from tests.unit.plan.toys import LARGE, PAGE, large_profile, toy_profile, two_tiers

READ = 19 * LARGE * PAGE
"""Bytes that a step of large_profile() reads: LARGE times the 19 pages that toy_profile() accesses.
The step writes half as many bytes."""
PJ = 8e-12
"""Joules of a byte at 1 pJ per bit."""


def test_accesses_cost_the_energy_of_the_tier_that_serves_them() -> None:
    profile, model = large_profile(), energy_of(preset_tiers("optane", 1))
    rows = len(profile.accesses)
    fast = READ * 1.5 * 20 * PJ
    assert model.access_joules(profile, np.zeros(rows)) == pytest.approx(fast)
    slow = (READ * 31 + READ / 2 * 980) * PJ
    assert model.access_joules(profile, np.ones(rows)) == pytest.approx(slow)
    half = np.full(rows, 0.5)
    assert model.access_joules(profile, half) == pytest.approx((fast + slow) / 2)


def test_caches_serve_small_tensors() -> None:
    profile, model = toy_profile(), energy_of(preset_tiers("cxl", 1))
    assert profile.tensors["bytes"].max() < CACHED_BYTES
    assert model.access_joules(profile, np.ones(len(profile.accesses))) == 0


def test_a_slow_access_on_paged_tiers_transfers_whole_pages() -> None:
    profile, model = large_profile(), energy_of(preset_tiers("nvme", 1))
    tensors, rows = profile.tensors.copy(), profile.accesses[:1].copy()
    rows["bytes_read"], rows["bytes_written"] = 3 * PAGE + 1, 0
    read_only = replace(profile, tensors=tensors, accesses=rows)
    assert model.extra_joules(read_only).tolist() == pytest.approx([4 * PAGE * (304 + 20) * PJ])
    rows = rows.copy()
    rows["bytes_written"] = 1
    written = replace(read_only, accesses=rows)
    expected = 4 * PAGE * (304 + 20 + 20 + 462) * PJ
    assert model.extra_joules(written).tolist() == pytest.approx([expected])


def test_a_move_reads_one_tier_and_writes_the_other() -> None:
    model = energy_of(preset_tiers("optane", 1))
    assert model.moved_joules(1000, 0) == pytest.approx(1000 * (31 + 20) * PJ)
    assert model.moved_joules(0, 1000) == pytest.approx(1000 * (20 + 980) * PJ)
    assert model.copying_s(20e9) == 2.0
    assert energy_of(preset_tiers("nvme", 1)).copying_s(20e9) == 0.0


def test_cores_use_less_while_they_wait() -> None:
    assert core_joules(2.0, 1.0) == pytest.approx(2 * CORE_W + WAITING_CORE_W)
    assert WAITING_CORE_W < CORE_W


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_has_a_medium(name: str) -> None:
    tiers = preset_tiers(name, 1)
    medium = MEDIA[name.partition("-")[0]]
    assert energy_of(tiers).slow is medium
    assert energy_of(tiers).paged == tiers.paged
    if not tiers.paged:
        assert energy_of(replace(tiers, source=f"emulated:{name}")).slow is medium
    assert medium.read_pj_per_bit >= DRAM.read_pj_per_bit


def test_an_unknown_slow_node_counts_as_cxl() -> None:
    assert energy_of(two_tiers()).slow is MEDIA["cxl"]
    assert energy_of(replace(two_tiers(), source="sysfs:hmat")).slow is MEDIA["cxl"]
