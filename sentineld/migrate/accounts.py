# SPDX-License-Identifier: Apache-2.0
"""Accounts for the pages of moves: moved, skipped and failed bytes, and late moves."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from sentineld.migrate.ledger import Ledger
from sentineld.migrate.pending import Pages, Pending, no_pages
from sentineld.migrate.residency_map import FAST, PageMaps
from sentineld.migrate.syscalls import Status


class Outcome(NamedTuple):
    """What a move_pages call did with some pages of a move."""

    moved_bytes: int
    """Bytes that are on the move's tier now."""
    left: Pages
    """The pages that the kernel did not move, although they exist. Empty if the call was
    interrupted."""
    why: str
    """Why it did not move them; see Pending.why. "" if `left` is empty."""


class Accounts:
    """Accounts for the moves of one mover."""

    def __init__(
        self, ledger: Ledger, spaces: PageMaps, pages_of: Callable[[Pending], Pages]
    ) -> None:
        """pages_of: see Schedule."""
        self._ledger, self._spaces, self._pages_of = ledger, spaces, pages_of

    def moved(self, move: Pending, pages: Pages, status: Status, error: int) -> Outcome:
        """Account for these pages of a move after a move_pages call.

        status: the status of each page. error: MoveResult.error.
        """
        direction, page_bytes = _direction(move), self._spaces.page_bytes
        there = self._spaces.on_tier(status, move.tier)
        moved_pages = int(np.count_nonzero(there))
        moved_bytes = moved_pages * page_bytes
        if moved_bytes:
            if move.late:
                self._count_late(move)
            move.moved_bytes += moved_bytes
            self._ledger.moved(direction, move.reason, moved_bytes, move.late)
        if moved_pages == len(pages):
            return Outcome(moved_bytes, no_pages(), "")
        absent = (status == -errno.ENOENT) | (status == -errno.EFAULT)
        if absent.any():
            self._ledger.skipped(direction, "absent", int(np.count_nonzero(absent)) * page_bytes)
        left = ~(there | absent)
        if not left.any() or error == errno.EINTR:
            return Outcome(moved_bytes, no_pages(), "")
        shared = bool((status[left] == -errno.EACCES).all())
        why = "no-memory" if error == errno.ENOMEM else "shared" if shared else "busy"
        return Outcome(moved_bytes, pages[left], why)

    def given_up(self, move: Pending, why: str) -> None:
        """Account for a move that ends unfinished or had nothing to move."""
        direction = _direction(move)
        if why in ("already-there", "absent"):
            self._ledger.skipped(direction, why, move.bytes)
            return
        left_bytes = len(self._pages_of(move)) * self._spaces.page_bytes
        if why in ("busy", "shared", "no-memory"):
            self._ledger.failed(direction, why, left_bytes)
            return
        self._ledger.skipped(direction, why, left_bytes)
        if why == "late":
            self._count_late(move)

    def _count_late(self, move: Pending) -> None:
        """Count a late move, unless it has been counted before."""
        if not move.counted_late:
            move.counted_late = True
            self._ledger.late_move()


def is_promotion(move: Pending) -> bool:
    """Whether the move is to the fastest tier."""
    return move.tier == FAST


def _direction(move: Pending) -> str:
    return "promote" if is_promotion(move) else "demote"
