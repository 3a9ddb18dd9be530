# SPDX-License-Identifier: Apache-2.0
"""What the ledger counts for the pages of a move."""

from __future__ import annotations

import errno

import numpy as np
import pytest

from sentineld.migrate.accounts import Accounts
from sentineld.migrate.ledger import Ledger
from sentineld.migrate.pending import Pending
from sentineld.migrate.residency_map import PageMaps
from sentineld.model.plan import Space
from sentineld.model.tiers import Tier, Tiers

PAGE = 4096
PAGES = np.arange(4)
TIERS = Tiers((Tier((0,), 1 << 30), Tier((1, 2), 1 << 30)), 1e8, "config")


class Books:
    """The accounts of a move of four pages of the heap."""

    def __init__(self, tier: int = 1, late: bool = False, left: int = 0) -> None:
        """left: the number of the move's pages that are not on its tier."""
        self.ledger = Ledger()
        spaces = PageMaps(TIERS, {Space.HEAP: (1 << 20, 4 * PAGE)})
        self.accounts = Accounts(self.ledger, spaces, lambda _: PAGES[:left])
        self.move = Pending(Space.HEAP, 0, 4 * PAGE, tier, 1, 2, 3, "plan", late=late)

    def moved(self, status: list[int], error: int = 0) -> tuple[int, list[int], str]:
        outcome = self.accounts.moved(self.move, PAGES, np.array(status, np.int32), error)
        return outcome.moved_bytes, outcome.left.tolist(), outcome.why


def test_pages_on_any_node_of_the_tier_have_moved() -> None:
    books = Books()
    assert books.moved([1, 2, 1, 2]) == (4 * PAGE, [], "")
    assert books.ledger.totals() == {("demote", "plan", "moved"): 4 * PAGE}
    assert books.move.moved_bytes == 4 * PAGE


def test_absent_pages_are_skipped_and_the_others_are_left() -> None:
    books = Books(tier=0)
    assert books.moved([0, -errno.ENOENT, -errno.EFAULT, -errno.EBUSY]) == (PAGE, [3], "busy")
    assert books.ledger.totals() == {
        ("promote", "plan", "moved"): PAGE,
        ("promote", "absent", "skipped"): 2 * PAGE,
    }


@pytest.mark.parametrize(
    ("status", "error", "why"),
    [
        (-errno.EACCES, 0, "shared"),
        (-errno.EBUSY, 0, "busy"),
        (0, errno.ENOMEM, "no-memory"),
    ],
)
def test_the_outcome_says_why_pages_are_left(status: int, error: int, why: str) -> None:
    assert Books().moved([status] * 4, error) == (0, [0, 1, 2, 3], why)


def test_pages_of_an_interrupted_call_are_not_left_behind() -> None:
    assert Books().moved([1, 0, 0, 0], errno.EINTR) == (PAGE, [], "")


def test_a_late_move_counts_once() -> None:
    books = Books(tier=0, late=True)
    books.moved([0, 1, 1, 1], errno.EINTR)
    books.moved([0, 0, 0, 0])
    books.accounts.given_up(books.move, "late")
    assert books.ledger.late_moves == 1


@pytest.mark.parametrize(
    ("why", "result", "size_bytes"),
    [
        ("already-there", "skipped", 4 * PAGE),
        ("superseded", "skipped", 3 * PAGE),
        ("busy", "failed", 3 * PAGE),
        ("no-memory", "failed", 3 * PAGE),
    ],
)
def test_what_is_left_of_a_move_is_skipped_or_failed(
    why: str, result: str, size_bytes: int
) -> None:
    books = Books(left=3)
    books.accounts.given_up(books.move, why)
    assert books.ledger.totals() == {("demote", why, result): size_bytes}
