# SPDX-License-Identifier: Apache-2.0
"""The check of whether the demo's second part can run on a machine.

This part of the demo needs node 0 in the fastest memory tier and node 1 in a slower tier.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.demo.machines import has_two_tiers


def sys_root(root: Path, tiers: dict[int, str]) -> Path:
    """A /sys with memory tiers. tiers: each tier's node list, by the tier's abstract distance."""
    for distance, nodes in tiers.items():
        folder = root / f"devices/virtual/memory_tiering/memory_tier{distance}"
        folder.mkdir(parents=True)
        (folder / "nodelist").write_text(nodes + "\n")
    return root


@pytest.mark.parametrize(
    ("tiers", "expected"),
    [
        ({}, False),
        ({4: "0"}, False),
        ({4: "0-1"}, False),
        ({4: "0", 961: "1"}, True),
        ({4: "0,2", 22: "3", 961: "1"}, True),
        ({4: "0-1", 961: "2"}, False),  # node 1 is a second socket's DRAM
        ({4: "1", 961: "0"}, False),
    ],
)
def test_the_demos_nodes_are_in_two_tiers(
    tmp_path: Path, tiers: dict[int, str], expected: bool
) -> None:
    assert has_two_tiers(sys_root(tmp_path, tiers)) is expected
