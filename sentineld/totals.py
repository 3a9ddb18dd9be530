# SPDX-License-Identifier: Apache-2.0
"""A session's counters, which never fall although plans and attachments come and go."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from sentineld.managed import Managed
from sentineld.migrate.ledger import Entry
from sentineld.sampling import Sampling


@dataclass
class PastTotals:
    """Sums over ended plans and attachments."""

    moved_bytes: Counter[Entry] = field(default_factory=Counter)
    late_moves: int = 0
    samples: int = 0
    samples_lost: int = 0

    def copy(self) -> PastTotals:
        """Independent sums."""
        return PastTotals(
            Counter(self.moved_bytes), self.late_moves, self.samples, self.samples_lost
        )

    def moved_by_entry(self) -> dict[tuple[str, str, str], int]:
        """Bytes by (direction, reason, result)."""
        return {
            (entry.direction, entry.reason, entry.result): size
            for entry, size in self.moved_bytes.items()
        }

    def add(self, managed: Managed | None, sampling: Sampling | None) -> None:
        """Add what these have counted."""
        if managed is not None:
            self.moved_bytes.update(managed.mover.ledger.totals())
            self.late_moves += managed.mover.ledger.late_moves
        if sampling is not None:
            self.samples += sampling.total
            self.samples_lost += sampling.lost
