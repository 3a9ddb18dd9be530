# SPDX-License-Identifier: Apache-2.0
"""The room of a node for moved pages. A move that fits in this room rarely fails with ENOMEM."""

from __future__ import annotations

from pathlib import Path

from sentineld.host import sysfs
from sentineld.model.tiers import Tiers


class Capacity:
    """Free memory of the tiers' nodes above their watermarks."""

    def __init__(
        self, tiers: Tiers, sys_root: Path = Path("/sys"), proc_root: Path = Path("/proc")
    ) -> None:
        self._tiers = tiers
        self._sys_root = sys_root
        self._reserve = {
            node: sysfs.high_watermark_bytes(proc_root, node)
            for tier in tiers.tiers
            for node in tier.nodes
        }

    def node_bytes(self, node: int) -> int:
        """Bytes that can move to the node: free memory above the high watermark, and cold page
        cache.

        To make room for a migration, the kernel drops clean page cache; it does not swap or demote.
        """
        info = sysfs.node_meminfo(self._sys_root, node)
        available = info.get("MemFree", 0) + info.get("Inactive(file)", 0)
        return max(0, available - self._reserve.get(node, 0))

    def best_node(self, tier: int) -> tuple[int, int]:
        """Return the tier's node with the most room, and its room in bytes."""
        nodes = self._tiers.tiers[tier].nodes
        if len(nodes) == 1:
            return nodes[0], self.node_bytes(nodes[0])
        room, node = max((self.node_bytes(node), -node) for node in nodes)
        return -node, room
