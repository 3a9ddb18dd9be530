# SPDX-License-Identifier: Apache-2.0
"""Memory and swap: the fast tier is memory, the slow tier is the kernel's swap.

This substrate serves processes without the shim (sentineld/heat/). Trainings under the shim need
another substrate, because their plans place pages on nodes or in a file.
"""

from __future__ import annotations

from sentineld.base.errors import SentinelError
from sentineld.config import TierOverrides
from sentineld.host.memory_size import memory_bytes
from sentineld.host.swap import read_swap
from sentineld.machine.nodes import KernelSubstrate
from sentineld.machine.substrate import require_no_nodes, require_timing
from sentineld.model.tiers import Overlap, Tier, Tiers
from sentineld.observe.shim_link import ShimLink

PAGE_OUT_BYTES_PER_S = float(256 << 20)
"""Limit on the page-outs of one session, unless the config sets another limit. Reclaim takes CPU
time: reclaiming 0.5 GB/s keeps one core busy."""


class SwapSubstrate(KernelSubstrate):
    """Memory and swap. Differs from KernelSubstrate in the tiers, and refuses processes under the
    shim."""

    swap = True

    def __init__(self, figures: TierOverrides) -> None:
        """Raises SentinelError("bad-config")."""
        require_no_nodes(figures, "swap")
        require_timing(figures, "swap", (Overlap.NONE,))
        super().__init__(figures)

    def tiers(self) -> Tiers:
        """Memory, and all swap areas. The migration bandwidth is the limit on page-outs. Raises
        SentinelError("no-second-tier")."""
        swap = require_swap()
        limit = self._figures.migration_bytes_per_s or PAGE_OUT_BYTES_PER_S
        return Tiers((Tier((), memory_bytes()), Tier((), swap)), limit, "swap")

    def require_allowed(self, link: ShimLink, tiers: Tiers) -> None:
        """Refuse the process: it runs under the shim."""
        raise SentinelError(
            "wrong-state",
            f"process {link.pid} runs under the shim, but the daemon's tiers are memory and swap",
            "start sentineld with --tiers paged, emulated:PRESET, or on a machine with two tiers",
        )


def require_swap() -> int:
    """Bytes of all swap areas. Raises SentinelError("no-second-tier") if no swap is enabled."""
    total_bytes = read_swap().total_bytes
    if not total_bytes:
        raise SentinelError(
            "no-second-tier",
            "no swap is enabled",
            "enable swap, for example on zram, then restart sentineld",
        )
    return total_bytes
