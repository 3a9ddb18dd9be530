# SPDX-License-Identifier: Apache-2.0
"""Presets of machines that are not at hand."""

from __future__ import annotations

import pytest

from sentineld.host.presets import PRESETS, preset_tiers

GB = 1e9


@pytest.mark.parametrize("name", sorted(PRESETS))
@pytest.mark.parametrize("threads", [1, 6, 12, 64])
def test_presets_scale_with_threads_up_to_the_socket(name: str, threads: int) -> None:
    found, whole = preset_tiers(name, threads), preset_tiers(name, 12)
    share = min(threads, 12) / 12
    assert found.migration_bytes_per_s == pytest.approx(whole.migration_bytes_per_s * share)
    for tier, full in zip(found.tiers, whole.tiers, strict=True):
        assert tier.read_bytes_per_s == pytest.approx(full.read_bytes_per_s * share)
        assert tier.write_bytes_per_s == pytest.approx(full.write_bytes_per_s * share)
    assert found.source == f"preset:{name}"


def test_presets_are_what_the_sources_say() -> None:
    figures = {
        name: tuple(
            round(rate / GB, 6)
            for rate in (
                one.tiers[0].read_bytes_per_s,
                one.tiers[1].read_bytes_per_s,
                one.tiers[1].write_bytes_per_s,
                one.migration_bytes_per_s,
            )
        )
        for name in PRESETS
        for one in [preset_tiers(name, 12)]
    }
    assert figures == {
        "dram": (105, 105, 105, 10),
        "cxl": (105, 24, 20, 10),
        "optane": (105, 38, 12, 8),
    }
