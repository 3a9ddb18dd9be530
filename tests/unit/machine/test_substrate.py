# SPDX-License-Identifier: Apache-2.0
"""Properties in which the substrates differ."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sentineld.base.errors import SentinelError
from sentineld.config import TierOverrides
from sentineld.machine.emulated import EmulatedSubstrate
from sentineld.machine.nodes import KernelSubstrate
from sentineld.machine.paged import PagedSubstrate
from sentineld.machine.substrate import MeteredBy, figures_of
from sentineld.machine.swapped import SwapSubstrate


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


@pytest.mark.parametrize(
    ("variant", "emulated"),
    [({"overlap": "compute"}, True), ({"overlap": "tiers"}, False), ({"moves_yield": True}, False)],
)
def test_variants_of_the_timing_model_are_refused_where_they_are_impossible(
    tmp_path: Path, variant: dict[str, Any], emulated: bool
) -> None:
    KernelSubstrate(TierOverrides(**variant))
    (name,) = variant
    if emulated:
        made = EmulatedSubstrate(TierOverrides(emulated="cxl", birth_ns_per_byte=1.0, **variant))
        assert made.tiers().overlap == variant["overlap"]
    refusing: list[tuple[Callable[[TierOverrides], object], dict[str, Any]]] = [
        (PagedSubstrate, {"paged": str(tmp_path)}),
        (SwapSubstrate, {"swap": True}),
    ]
    if not emulated:
        refusing.append((EmulatedSubstrate, {"emulated": "cxl"}))
    for substrate, kind in refusing:
        with pytest.raises(SentinelError, match=rf"tiers\.{name}.* is not possible") as caught:
            substrate(TierOverrides(**kind, **variant))
        assert caught.value.code == "bad-config"
        assert caught.value.hint == "leave it out"
