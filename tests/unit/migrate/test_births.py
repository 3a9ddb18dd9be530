# SPDX-License-Identifier: Apache-2.0
"""What a page made anew takes on this machine."""

from __future__ import annotations

import mmap
from dataclasses import replace

import pytest

from sentineld.host.presets import preset_tiers
from sentineld.migrate import births
from sentineld.migrate.births import birth_ns_per_byte, measure_births

MIB = 1 << 20


@pytest.mark.parametrize("size_bytes", [mmap.PAGESIZE, 4 * MIB, births.PIECE_BYTES + MIB])
def test_it_takes_some_time(size_bytes: int) -> None:
    # A page takes 4 KiB of stores at least, and no millisecond.
    assert 0.0 < birth_ns_per_byte(size_bytes) < 1e6 / mmap.PAGESIZE


def test_where_the_kernel_makes_no_pages_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(births, "MADV_POPULATE_WRITE", 0x7FFF)  # EINVAL, as before Linux 5.14
    assert birth_ns_per_byte(4 * MIB) > 0.0


def test_the_tiers_get_the_figure() -> None:
    tiers = preset_tiers("cxl", 1)
    assert tiers.birth_ns_per_byte == 0.0
    found = measure_births(tiers)
    assert found.birth_ns_per_byte > 0.0
    assert replace(found, birth_ns_per_byte=0.0) == tiers


def test_or_stay_as_they_are_without_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(births, "SCRATCH_BYTES", 1 << 62)
    assert measure_births(preset_tiers("cxl", 1)) == preset_tiers("cxl", 1)
