# SPDX-License-Identifier: Apache-2.0
"""Presets: the tiers of other machines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sentineld.base.errors import SentinelError
from sentineld.config import TierOverrides
from sentineld.host.presets import (
    FIGURES,
    PRESETS,
    configured_tiers,
    is_tiers_file,
    named_tiers,
    preset_tiers,
)
from sentineld.model.timing import timing_of

GB = 1e9


@pytest.mark.parametrize("name", sorted(set(PRESETS) - {"nvme"}))
@pytest.mark.parametrize("threads", [1, 6, 12, 64])
def test_presets_scale_with_threads_up_to_the_socket(name: str, threads: int) -> None:
    found, whole = preset_tiers(name, threads), preset_tiers(name, 12)
    share = min(threads, 12) / 12
    assert found.migration_bytes_per_s == pytest.approx(whole.migration_bytes_per_s * share)
    for tier, full in zip(found.tiers, whole.tiers, strict=True):
        assert tier.read_bytes_per_s == pytest.approx(full.read_bytes_per_s * share)
        assert tier.write_bytes_per_s == pytest.approx(full.write_bytes_per_s * share)
    assert found.source == f"preset:{name}"


def test_a_name_is_that_of_a_preset_or_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "cxl.toml"
    file.write_text("[tiers]\n" + "".join(f"{key} = 2e9\n" for key in FIGURES))
    assert named_tiers("cxl", 3) == preset_tiers("cxl", 3)
    assert named_tiers(str(file), 1) == named_tiers(str(file), 12)
    assert named_tiers(str(file), 1).tiers[1].read_bytes_per_s == 2e9
    assert [is_tiers_file(name) for name in ("cxl", "optan", "own.toml", "./own")] == [
        *(False, False, True, True)
    ]


def test_presets_equal_the_published_figures() -> None:
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
        "cxl-4k": (105, 24, 20, 3.5),
        "remote": (105, 62.4, 62.4, 10),
        "optane": (105, 38, 12, 8),
        "nvme": (105, 1.05, 2.6, 1.49589),
    }


def test_a_disk_serves_any_number_of_threads_alike() -> None:
    one, many = preset_tiers("nvme", 1), preset_tiers("nvme", 12)
    assert one.paged
    assert one.tiers[1] == many.tiers[1]
    assert one.migration_bytes_per_s == many.migration_bytes_per_s
    assert one.tiers[0].read_bytes_per_s == pytest.approx(many.tiers[0].read_bytes_per_s / 12)
    timing = timing_of(one)
    assert timing.promote_ns_per_byte == pytest.approx(1 / 1.05)
    assert timing.demote_ns_per_byte == pytest.approx(1 / 2.6)


@pytest.mark.parametrize(
    ("name", "hint"),
    [("optan", "did you mean optane?"), ("zz", "presets: dram, cxl, cxl-4k, remote, optane, nvme")],
)
def test_an_unknown_preset_is_refused_with_the_names(name: str, hint: str) -> None:
    with pytest.raises(SentinelError, match=f"no tier preset is named '{name}'") as error:
        preset_tiers(name, 1)
    assert (error.value.code, error.value.hint) == ("usage", hint)


def test_a_training_has_at_least_one_thread() -> None:
    with pytest.raises(SentinelError, match="the number of threads is 0") as error:
        preset_tiers("cxl", 0)
    assert error.value.code == "usage"


COMPLETE = TierOverrides(
    fast_read_bytes_per_s=4e9,
    fast_write_bytes_per_s=3e9,
    slow_read_bytes_per_s=2e9,
    slow_write_bytes_per_s=1e9,
    migration_bytes_per_s=5e8,
)


def test_configured_bandwidths_are_used_unscaled() -> None:
    found = configured_tiers(COMPLETE)
    assert [tier.nodes for tier in found.tiers] == [(0,), (1,)]
    assert [tier.read_bytes_per_s for tier in found.tiers] == [4e9, 2e9]
    assert [tier.write_bytes_per_s for tier in found.tiers] == [3e9, 1e9]
    assert (found.migration_bytes_per_s, found.source) == (5e8, "config")


@pytest.mark.parametrize("name", FIGURES)
def test_each_missing_figure_is_named(name: str) -> None:
    with pytest.raises(SentinelError, match=f"tiers.{name} is missing") as error:
        configured_tiers(replace(COMPLETE, **{name: 0.0}))
    assert error.value.code == "bad-config"
