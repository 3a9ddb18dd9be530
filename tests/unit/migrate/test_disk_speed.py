# SPDX-License-Identifier: Apache-2.0
"""The disk of a folder is measured, and nothing is left in the folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from sentineld.base.errors import SentinelError
from sentineld.migrate import disk_speed
from sentineld.migrate.disk_speed import REQUEST_BYTES, DiskRates, measure_disk
from sentineld.model.timing import FAULT_BYTES


def test_both_directions_are_measured(tmp_path: Path) -> None:
    rates = measure_disk(tmp_path, 4 * REQUEST_BYTES)
    assert rates.read_bytes_per_s > 0
    assert rates.write_bytes_per_s > 0
    assert rates.fault_ns > rates.wake_ns > 0
    assert not list(tmp_path.iterdir())


def test_a_disk_that_fails_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(disk_speed.os, "pwrite", fail)
    with pytest.raises(SentinelError, match="cannot be measured: Input/output error"):
        measure_disk(tmp_path, REQUEST_BYTES)


def test_the_latency_is_the_part_of_a_fault_besides_the_transfer() -> None:
    rates = DiskRates(1e9, 1e9, fault_ns=200e3)
    assert rates.latency_ns(FAULT_BYTES * 1e4) == 100e3
    # At 1 byte/s, the transfer alone would take longer than the measured fault, so the latency
    # counts as 1 ns.
    assert rates.latency_ns(1.0) == 1.0
    assert DiskRates(1e9, 1e9).latency_ns(1e9) == 0.0  # not measured
