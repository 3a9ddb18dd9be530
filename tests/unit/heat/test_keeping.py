# SPDX-License-Identifier: Apache-2.0
"""Prefetches within the bandwidth limit.

The advice to read pages from swap (MADV_WILLNEED) goes to a real process. Its pages need not be in
swap, because the kernel ignores the advice for other pages.

tests/integration/test_temperature.py pages real programs out and in.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from sentineld.heat import paging_out as module
from sentineld.heat.keeping import WITHIN, Keeping
from sentineld.heat.members import Members
from sentineld.heat.memory import SessionMemory
from sentineld.heat.paging_out import BATCH_PAGES, BURST_S, PagingOut
from sentineld.heat.target import OneProcess
from sentineld.migrate.advice import Advice, advise
from sentineld.model.arrays import Table
from sentineld.model.records import PAGE_BYTES, PAGE_RUN_DTYPE
from sentineld.policies.temperature.heat import Heat
from sentineld.policies.temperature.units import Units
from tests.unit.block_process import BlockProcess, block_process

ALL = 10**9
UNIT = 1 << 14
WANTED = UNIT - 100
"""Pages of the hot unit that are in swap."""


@pytest.fixture
def process() -> Iterator[BlockProcess]:
    with block_process() as started:
        yield started


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(first page, pages) of all advice to read pages from swap."""
    found: list[tuple[int, int]] = []

    def noted(pidfd: int, pid: int, runs: Table, advice: Advice) -> None:
        assert advice is Advice.WILL_NEED
        found.extend((page, pages) for page, pages, _ in runs.tolist())
        advise(pidfd, pid, runs, advice)

    monkeypatch.setattr(module, "advise", noted)
    return found


def hot_heat() -> Heat:
    """One hot unit, most of whose pages are in swap."""
    heat = Heat(np.random.default_rng(1))
    heat.renew(unit_with(UNIT))
    for resident in (1, 50, 100):
        scan(heat, resident)
    return heat


def unit_with(resident: int) -> Units:
    """One unit with this number of resident pages; the others are in swap."""
    rows = [(0, resident, True), (resident, UNIT - resident, False)]
    return Units(np.array([row for row in rows if row[1]], PAGE_RUN_DTYPE), UNIT)


def scan(heat: Heat, resident: int) -> None:
    """A scan that finds this number of resident pages in the unit."""
    heat.renew(unit_with(resident))
    heat.end_unseen(ALL)


def keeping(
    process: BlockProcess,
    pages_per_s: float,
    stopped: Callable[[], bool] = lambda: False,
    heat: Heat | None = None,
) -> Keeping:
    members = Members(OneProcess(process.pid), os.getuid())
    paging_out = PagingOut(members, pages_per_s * PAGE_BYTES)
    return Keeping(SessionMemory(members), heat or hot_heat(), paging_out, stopped)


def test_prefetches_take_only_the_saved_bandwidth(
    process: BlockProcess, fetched: list[tuple[int, int]]
) -> None:
    tested = keeping(process, 10 / BURST_S)
    assert tested.keep(0, ALL * PAGE_BYTES) == WITHIN
    assert fetched == [(100, 10)]
    assert tested.prefetched_bytes == 10 * PAGE_BYTES


def test_prefetches_go_on_when_there_is_bandwidth_again(
    process: BlockProcess, fetched: list[tuple[int, int]]
) -> None:
    tested = keeping(process, WANTED)
    while tested.prefetched_bytes < WANTED * PAGE_BYTES:
        tested.keep(0, ALL * PAGE_BYTES)
    assert sum(pages for _, pages in fetched) == WANTED
    assert all(pages <= BATCH_PAGES for _, pages in fetched)
    firsts = [page for page, _ in fetched]
    assert firsts == sorted(firsts)
    tested.keep(0, ALL * PAGE_BYTES)
    assert tested.prefetched_bytes == WANTED * PAGE_BYTES


def test_another_scan_replaces_the_rest(
    process: BlockProcess, fetched: list[tuple[int, int]]
) -> None:
    tested = keeping(process, WANTED)
    tested.keep(0, ALL * PAGE_BYTES)
    before_bytes = tested.prefetched_bytes
    tested.walk()
    time.sleep(0.05)  # now there is bandwidth for further pages
    tested.keep(0, ALL * PAGE_BYTES)
    assert tested.prefetched_bytes == before_bytes < WANTED * PAGE_BYTES


def test_prefetches_end_early_when_the_session_ends(
    process: BlockProcess, fetched: list[tuple[int, int]]
) -> None:
    keeping(process, 1e9, stopped=lambda: bool(fetched)).keep(0, ALL * PAGE_BYTES)
    assert len(fetched) == 1


def test_pages_that_stay_in_swap_are_not_fetched_again(
    process: BlockProcess, fetched: list[tuple[int, int]]
) -> None:
    heat = hot_heat()
    tested = keeping(process, 1e9, heat=heat)
    tested.keep(0, ALL * PAGE_BYTES)
    assert tested.prefetched_bytes == WANTED * PAGE_BYTES
    # The process accesses few of the fetched pages: the kernel reclaims the others.
    for resident in (101, 102, 103):
        scan(heat, resident)
        tested.keep(0, ALL * PAGE_BYTES)
    assert tested.prefetched_bytes == WANTED * PAGE_BYTES


def test_a_unit_whose_pages_were_used_is_fetched_again(
    process: BlockProcess, fetched: list[tuple[int, int]]
) -> None:
    heat = hot_heat()
    tested = keeping(process, 1e9, heat=heat)
    tested.keep(0, ALL * PAGE_BYTES)
    scan(heat, UNIT)
    heat.renew(unit_with(100))  # the kernel reclaims the pages
    scan(heat, 101)
    tested.keep(0, ALL * PAGE_BYTES)
    assert tested.prefetched_bytes == (WANTED + UNIT - 101) * PAGE_BYTES
