# SPDX-License-Identifier: Apache-2.0
"""Which batches count as measurements of the bandwidth."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from sentineld.migrate.ledger import Ledger
from sentineld.migrate.pace import Pace
from sentineld.migrate.process_memory import KernelMemory
from sentineld.model.plan import MOVE_DTYPE
from sentineld.model.tiers import Tier, Tiers

PAGE = 4096
TIERS = Tiers((Tier((0,), 1 << 30), Tier((1,), 1 << 30)), 1e8, "config")


@dataclass
class Series:
    """A sequence of batches of moves. A batch has at most 64 pages. pages: size of the plan's
    largest move, in pages. exact, waits: see Memory (migrate/process_memory.py)."""

    pages: int = 8
    exact: bool = False
    waits: bool = True

    def __post_init__(self) -> None:
        memory = KernelMemory(0, TIERS, batch_pages=64)
        memory.exact, memory.waits = self.exact, self.waits
        moves = np.zeros(2, MOVE_DTYPE)
        moves["bytes"] = PAGE, self.pages * PAGE
        self.ledger = Ledger()
        self.pace = Pace(self.ledger, memory, moves, PAGE)
        self.pace.begin()

    def measured(self, *batches: int, interrupted: bool = False) -> int:
        """Make batches of these sizes, in pages; return the number of pages measured so far."""
        for pages in batches:
            self.pace.batch(pages * PAGE, interrupted)
        return self.ledger.large_batches()[0] // PAGE


def test_small_batches_are_not_measured() -> None:
    series = Series()
    assert series.measured(31, 0, 31) == 0
    assert series.measured(32, 64) == 96


@pytest.mark.parametrize(("pages", "enough"), [(8, 4), (1000, 32)])
def test_half_of_the_largest_move_is_enough_without_overhead(pages: int, enough: int) -> None:
    assert Series(pages, exact=True).measured(enough - 1) == 0
    assert Series(pages, exact=True).measured(enough) == enough


def test_an_interrupted_batch_is_measured_together_with_the_next_one() -> None:
    series = Series()
    assert series.measured(20, interrupted=True) == 0
    assert series.measured(20) == 40
    assert series.measured(20, interrupted=True) == 40
    assert series.measured(2) == 40
    assert series.measured(20) == 40


def test_memory_that_does_not_wait_for_moves_is_not_measured() -> None:
    assert Series(waits=False).measured(64, 64) == 0
