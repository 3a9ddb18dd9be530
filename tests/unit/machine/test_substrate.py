# SPDX-License-Identifier: Apache-2.0
"""Properties in which the substrates differ."""

from __future__ import annotations

from pathlib import Path

from sentineld.config import TierOverrides
from sentineld.machine.emulated import EmulatedSubstrate
from sentineld.machine.nodes import KernelSubstrate
from sentineld.machine.paged import PagedSubstrate
from sentineld.machine.substrate import MeteredBy, figures_of


def test_only_the_kernels_nodes_are_metered_by_the_module(tmp_path: Path) -> None:
    assert KernelSubstrate(TierOverrides()).metered_by is MeteredBy.MODULE_EPOCHS
    emulated = EmulatedSubstrate(TierOverrides(emulated="cxl"))
    paged = PagedSubstrate(TierOverrides(paged=str(tmp_path)))
    assert emulated.metered_by is paged.metered_by is MeteredBy.RESIDENCY_MAP


def test_empty_settings_are_left_out() -> None:
    assert figures_of(TierOverrides()) == {"emulated_threads": 1}
    given = TierOverrides(fast=(0, 2), slow_read_bytes_per_s=5e8)
    assert figures_of(given) == {
        "fast": [0, 2],
        "slow_read_bytes_per_s": 5e8,
        "emulated_threads": 1,
    }
