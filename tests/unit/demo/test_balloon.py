# SPDX-License-Identifier: Apache-2.0
"""The balloon locks and releases real memory of a node."""

from __future__ import annotations

import re
from pathlib import Path

from tests.demo.balloon import Block

MIB = 1 << 20


def locked_bytes() -> int:
    match = re.search(r"VmLck:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert match
    return int(match[1]) << 10


def test_a_block_locks_only_its_first_bytes_up_to_its_size() -> None:
    before = locked_bytes()
    block = Block(0, 2 * MIB, huge=False)
    assert locked_bytes() == before
    seen = []
    for change in (+MIB, +MIB // 2, -MIB, +8 * MIB, -8 * MIB):
        block.grow(change) if change > 0 else block.shrink(-change)
        assert locked_bytes() - before == block.locked_bytes
        seen.append(block.locked_bytes)
    assert seen == [MIB, 3 * MIB // 2, MIB // 2, 2 * MIB, 0]
