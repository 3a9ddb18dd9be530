# SPDX-License-Identifier: Apache-2.0
"""Lists, memory and distances of nodes, read from made-up files."""

from __future__ import annotations

from pathlib import Path

from sentineld.host import sysfs


def test_lists_and_watermarks(tmp_path: Path) -> None:
    assert sysfs.parse_list("0-2,5\n") == (0, 1, 2, 5)
    assert sysfs.parse_list("\n") == ()
    (tmp_path / "zoneinfo").write_text(
        "Node 0, zone      DMA\n  pages free     3\n        high     10\n"
        "    pagesets\n    cpu: 0\n              high:  378\n"
        "Node 0, zone   Normal\n        high     90\n"
        "Node 1, zone   Normal\n        high     1000\n"
    )
    assert sysfs.high_watermark_bytes(tmp_path, 0) == 100 * 4096
    assert sysfs.high_watermark_bytes(tmp_path, 1) == 1000 * 4096
