# SPDX-License-Identifier: Apache-2.0
"""Pages out memory of a session's processes to swap and reads it back, within a bandwidth limit."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np

from sentineld.base.units import format_bytes
from sentineld.heat.member import Member
from sentineld.heat.members import Members
from sentineld.heat.spans import runs_by_span
from sentineld.host.swap import Swap, read_swap
from sentineld.migrate.advice import Advice, advise
from sentineld.model.arrays import Table
from sentineld.model.records import PAGE_BYTES
from sentineld.policies.temperature.rate import RateLimit

BATCH_PAGES = 1024
"""Pages per call. During a call, the process cannot change its mappings."""
BURST_S = 0.25
"""Unused bandwidth can be used later, but at most as much as accumulates in this time, or in the
interval given to pace() if that is longer. All pages that the saved bandwidth permits are moved
before the resident memory is compared with the budget again."""
RESERVE_SHARE = 1 / 16
"""Share of the swap that sessions leave free, for the kernel's own reclaim."""


def usable_bytes(swap: Swap) -> int:
    """Bytes of swap that sessions may still fill."""
    return max(swap.free_bytes - int(swap.total_bytes * RESERVE_SHARE), 0)


class PagingOut:
    """Page-outs of one session. Runs have the session's page numbers; see spans.py."""

    def __init__(self, members: Members, bytes_per_s: float) -> None:
        """bytes_per_s: limit on page-outs and prefetches together."""
        self._members = members
        self._pages_per_s = bytes_per_s / PAGE_BYTES
        self._limit = RateLimit(self._pages_per_s, self._pages_per_s * BURST_S)
        self._granted_s = time.monotonic()
        self.problem = ""
        """Why swap had no room for all pages at the last call of within_swap(); empty if it had
        room."""

    def pace(self, interval_s: float) -> None:
        """Let unused bandwidth accumulate over interval_s, or over BURST_S if that is longer.
        interval_s: interval at which the resident memory is compared with the budget."""
        self._limit.burst_pages = self._pages_per_s * max(BURST_S, interval_s)

    def grant(self, wanted_pages: int) -> int:
        """The number of pages that may be moved now."""
        now_s = time.monotonic()
        granted = self._limit.grant(now_s - self._granted_s, wanted_pages)
        self._granted_s = now_s
        return granted

    def within_swap(self, pages: int) -> int:
        """The number of pages that fit into swap, at most `pages`. Sets `problem` if fewer fit."""
        swap = read_swap()
        room = usable_bytes(swap) // PAGE_BYTES
        self.problem = ""
        if not swap.total_bytes:
            self.problem = "no swap is enabled any more, so nothing can be paged out"
        elif room < pages:
            self.problem = (
                f"swap is nearly full: {format_bytes(swap.free_bytes)} of "
                f"{format_bytes(swap.total_bytes)} are free"
            )
        return min(room, pages)

    def page_out(self, runs: Table, stop: Callable[[], bool]) -> None:
        """Page out runs (PAGE_RUN_DTYPE) until stop() is true. The kernel may refuse individual
        pages. Errors: see Members.each()."""
        self._advise(runs, Advice.PAGE_OUT, stop)

    def fetch(self, runs: Table, stop: Callable[[], bool]) -> None:
        """Read runs from swap into memory until stop() is true, so that the processes' first
        accesses do not wait for the device. Errors: see Members.each()."""
        self._advise(runs, Advice.WILL_NEED, stop)

    def _advise(self, runs: Table, advice: Advice, stop: Callable[[], bool]) -> None:
        for batch in batches(runs, BATCH_PAGES):
            if stop():
                return
            for span, own in runs_by_span(batch):
                member = self._members.of_span(span)
                if member is not None:
                    self._members.one(member, partial(_advised, runs=own, advice=advice))


def _advised(member: Member, runs: Table, advice: Advice) -> None:
    advise(member.process.fileno(), member.pid, runs, advice)


def split(runs: Table, pages: int) -> tuple[Table, Table]:
    """Split runs into those of the first `pages` pages, and the rest. A run may be cut."""
    before = np.cumsum(runs["pages"]) - runs["pages"]
    taken = np.clip(pages - before, 0, runs["pages"])
    first, rest = runs.copy(), runs.copy()
    first["pages"] = taken
    rest["page"] += taken
    rest["pages"] -= taken
    return first[first["pages"] > 0], rest[rest["pages"] > 0]


def batches(runs: Table, pages: int) -> list[Table]:
    """Split runs into batches of about this number of pages. A long run is cut."""
    parts = -(-runs["pages"] // pages)
    index = np.repeat(np.arange(len(runs)), parts)
    offset = (np.arange(len(index)) - np.repeat(np.cumsum(parts) - parts, parts)) * pages
    cut = runs[index]
    cut["page"] += offset
    cut["pages"] = np.minimum(cut["pages"] - offset, pages)
    number = (np.cumsum(cut["pages"]) - cut["pages"]) // pages
    return np.split(cut, np.flatnonzero(np.diff(number)) + 1) if len(cut) else []
