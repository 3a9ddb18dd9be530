# SPDX-License-Identifier: Apache-2.0
"""The units of a real process."""

from __future__ import annotations

import os

from sentineld.heat.memory import ProcessMemory
from sentineld.heat.target import HeatTarget
from sentineld.model.records import PAGE_BYTES
from sentineld.temperature.units import Units
from tests.unit.block_process import BLOCK_BYTES, MIB, BlockProcess, block_process

BLOCK_PAGES = BLOCK_BYTES // PAGE_BYTES


def pages_of_block(units: Units, process: BlockProcess) -> int:
    """Resident pages of the units that lie within the block."""
    first = process.address // PAGE_BYTES
    start = units.numbers * units.size_pages
    inside = (start >= first) & (start + units.size_pages <= first + BLOCK_PAGES)
    return int(units.resident[inside].sum())


def test_locked_memory_has_no_units() -> None:
    with block_process() as process:
        target = HeatTarget(process.pid, os.getuid())
        memory = ProcessMemory(target)
        memory.refresh()
        everything = pages_of_block(memory.units(resize=True), process)
        assert everything > BLOCK_PAGES - 2 * memory.units().size_pages
        assert memory.use.anonymous_bytes > BLOCK_BYTES
        assert "locked" not in memory.skipped_bytes()
        process.run(f"assert libc.mlock(ctypes.c_void_p(address), {MIB}) == 0")
        memory.refresh()
        assert memory.skipped_bytes()["locked"] == MIB
        left = pages_of_block(memory.units(), process)
        assert everything - left >= MIB // PAGE_BYTES - memory.units().size_pages
        target.close()
