# SPDX-License-Identifier: Apache-2.0
"""A session's counters of moves. They do not decrease when a plan is replaced, or when the process
is attached again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sentineld.migrate.ledger import Entry
from sentineld.session.live.managed import Managed


@dataclass(frozen=True)
class Moves:
    """Counters of a session's moves, summed over all its plans."""

    moved_bytes: Mapping[Entry, int] = field(default_factory=dict)
    late_moves: int = 0

    def plus(self, managed: Managed | None) -> Moves:
        """The sum of these counters and the counters of one more plan."""
        if managed is None:
            return self
        ledger = managed.mover.ledger
        moved_bytes = ledger.totals()
        for entry, size in self.moved_bytes.items():
            moved_bytes[entry] = moved_bytes.get(entry, 0) + size
        return Moves(moved_bytes, self.late_moves + ledger.late_moves)

    def bytes_moved(self, direction: str) -> int:
        """Bytes moved in one direction; see Entry.direction."""
        return sum(
            size
            for entry, size in self.moved_bytes.items()
            if (entry.direction, entry.result) == (direction, "moved")
        )

    def moved_by_entry(self) -> dict[tuple[str, str, str], int]:
        """Bytes by (direction, reason, result)."""
        return {
            (entry.direction, entry.reason, entry.result): size
            for entry, size in self.moved_bytes.items()
        }
