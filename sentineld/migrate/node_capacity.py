# SPDX-License-Identifier: Apache-2.0
"""The room of a node for moved pages. A move that fits in this room rarely fails with ENOMEM."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from sentineld.host import sysfs
from sentineld.model.tiers import Tiers

FRESH_NS = 100_000_000
ROOMY_BYTES = 64 << 20
"""A node's meminfo is read again after FRESH_NS, or if less than ROOMY_BYTES of room is known to be
left, or after a move to the node has failed. It is not read for each decision of the mover, because
most decisions take less time than reading and parsing it."""


class Capacity:
    """Computes how many bytes can move to each of the tiers' nodes; see node_bytes()."""

    def __init__(
        self,
        tiers: Tiers,
        sys_root: Path = Path("/sys"),
        proc_root: Path = Path("/proc"),
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._tiers = tiers
        self._now_ns = now_ns
        self._read: dict[int, tuple[int, int]] = {}
        """By node: when its meminfo was read, and its room at that time minus the bytes that have
        moved there since."""
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
        now_ns = self._now_ns()
        read_ns, room_bytes = self._read.get(node, (0, 0))
        if room_bytes >= ROOMY_BYTES and now_ns - read_ns < FRESH_NS:
            return room_bytes
        room_bytes = self._node_bytes(node)
        self._read[node] = now_ns, room_bytes
        return room_bytes

    def moved(self, node: int, size_bytes: int) -> None:
        """Report that pages have moved to the node. Without this report, the node would seem to
        have too much room until its meminfo is read again."""
        if node in self._read:
            read_ns, room_bytes = self._read[node]
            self._read[node] = read_ns, room_bytes - size_bytes

    def forget(self, node: int) -> None:
        """Make the next node_bytes() read the node's meminfo again. Call this when the node had
        less room for a move than expected."""
        self._read.pop(node, None)

    def _node_bytes(self, node: int) -> int:
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
