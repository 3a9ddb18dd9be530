# SPDX-License-Identifier: Apache-2.0
"""Properties in which the substrates differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sentineld.base.errors import SentinelError
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
    assert figures_of(TierOverrides()) == {"emulated_threads": 1, "overlap": "none"}
    given = TierOverrides(fast=(0, 2), slow_read_bytes_per_s=5e8)
    assert figures_of(given) == {
        "fast": [0, 2],
        "slow_read_bytes_per_s": 5e8,
        "emulated_threads": 1,
        "overlap": "none",
    }


@pytest.mark.parametrize("variant", [{"overlap": "compute"}, {"moves_yield": True}])
def test_variants_of_the_timing_model_are_refused_where_they_have_no_effect(
    tmp_path: Path, variant: dict[str, Any]
) -> None:
    KernelSubstrate(TierOverrides(**variant))
    (name,) = variant
    for kind, tiers in (("emulated", "cxl"), ("paged", str(tmp_path))):
        substrate = EmulatedSubstrate if kind == "emulated" else PagedSubstrate
        with pytest.raises(SentinelError, match=rf"tiers\.{name} has no effect") as caught:
            substrate(TierOverrides(**{kind: tiers}, **variant))
        assert caught.value.code == "bad-config"
        assert caught.value.hint == "leave it out"
