# SPDX-License-Identifier: Apache-2.0
"""The guest finds the device that has the modelled clock (docs/explanation/demo-clock.md)."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

from tests.demo.clock_device import clock_ns, find_clock


def add_device(folder: Path, vendor: str, device: str) -> Path:
    folder.mkdir(parents=True)
    (folder / "vendor").write_text(f"{vendor}\n")
    (folder / "device").write_text(f"{device}\n")
    (folder / "enable").write_text("0\n")
    return folder


def test_the_clock_is_found_and_enabled(tmp_path: Path) -> None:
    network = add_device(tmp_path / "0000:00:02.0", "0x1af4", "0x1000")
    memory = add_device(tmp_path / "0000:00:03.0", "0x1af4", "0x1110")
    assert find_clock(tmp_path) == memory / "resource2"
    assert (memory / "enable").read_text() == "1"
    assert (network / "enable").read_text() == "0\n"


def test_other_machines_have_no_clock(tmp_path: Path) -> None:
    add_device(tmp_path / "0000:00:02.0", "0x8086", "0x1110")
    assert find_clock(tmp_path) is None


def test_the_clock_is_read_in_nanoseconds(tmp_path: Path) -> None:
    memory = tmp_path / "resource2"
    memory.write_bytes(struct.pack("Q", 1234567).ljust(mmap.PAGESIZE, b"\0"))
    now_ns = clock_ns(memory)
    assert now_ns() == 1234
