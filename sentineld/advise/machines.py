# SPDX-License-Identifier: Apache-2.0
"""The machines that are compared, and the share of a machine that each of several trainings
gets."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sentineld.host.presets import SOCKET_THREADS
from sentineld.model.tiers import Tier, Tiers

TRAININGS_MAX = 2


@dataclass(frozen=True)
class Machine:
    """A slow tier, and a fast tier whose size is varied."""

    name: str
    tiers: Tiers
    """The bandwidths that a training gets if it runs alone."""
    socket_threads: int | None = None
    """The training's number of threads, if the memory bandwidths in `tiers` are a socket's
    bandwidths, scaled to this number of threads. None: the bandwidths come from a file or a
    measurement and are not scaled."""

    def share(self, trainings: int) -> Tiers:
        """The bandwidths that each of several identical trainings gets if all run at the same time.

        Each gets an equal part of the migration bandwidth and, on paged tiers, of the disk's
        bandwidth. This assumes that all of them move pages all the time. Memory bandwidths are
        divided only if they are a socket's bandwidths (see `socket_threads`) and the trainings
        together have more than SOCKET_THREADS threads. The latency of a disk does not change.
        """
        fast, slow = self.tiers.tiers[:2]
        memory = 1.0
        if self.socket_threads is not None:
            memory = min(
                1.0, SOCKET_THREADS / (trainings * min(self.socket_threads, SOCKET_THREADS))
            )
        return replace(
            self.tiers,
            tiers=(
                _scaled(fast, memory),
                _scaled(slow, 1 / trainings if self.tiers.paged else memory),
            ),
            migration_bytes_per_s=self.tiers.migration_bytes_per_s / trainings,
        )


def _scaled(tier: Tier, share: float) -> Tier:
    return replace(
        tier,
        read_bytes_per_s=tier.read_bytes_per_s * share,
        write_bytes_per_s=tier.write_bytes_per_s * share,
    )
