# SPDX-License-Identifier: Apache-2.0
"""The measured time of a page birth on this machine."""

from __future__ import annotations

import mmap
from dataclasses import replace

import pytest

from sentineld.host.presets import preset_tiers
from sentineld.migrate import births
from sentineld.migrate.births import birth_ns_per_byte, measure_births

MIB = 1 << 20


def slowest_ns_per_byte(size_bytes: int) -> float:
    """The largest of several measurements. A measurement is the time to fill dropped memory minus
    the time to fill resident memory, but at least 0. It can be 0 if another program takes CPU time
    while the resident memory is filled."""
    return max(birth_ns_per_byte(size_bytes) for _ in range(5))


@pytest.mark.parametrize("size_bytes", [mmap.PAGESIZE, 4 * MIB, births.PIECE_BYTES + MIB])
def test_a_birth_takes_time(size_bytes: int) -> None:
    # A birth takes some time, but less than a millisecond per page.
    assert 0.0 < slowest_ns_per_byte(size_bytes) < 1e6 / mmap.PAGESIZE


def test_a_kernel_without_populate_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(births, "MADV_POPULATE_WRITE", 0x7FFF)  # EINVAL, as on Linux before 5.14
    assert slowest_ns_per_byte(4 * MIB) > 0.0


def test_the_tiers_get_the_measured_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(births, "birth_ns_per_byte", lambda _: 0.25)
    tiers = preset_tiers("cxl", 1)
    assert tiers.birth_ns_per_byte == 0.0
    found = measure_births(tiers)
    assert found.birth_ns_per_byte == 0.25
    assert replace(found, birth_ns_per_byte=0.0) == tiers


def test_the_tiers_are_unchanged_without_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(births, "SCRATCH_BYTES", 1 << 62)
    assert measure_births(preset_tiers("cxl", 1)) == preset_tiers("cxl", 1)
