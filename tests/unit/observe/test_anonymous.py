# SPDX-License-Identifier: Apache-2.0
"""The page tables of a real process, and the removal of page ranges from runs of pages."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentineld.base.errors import SentinelError
from sentineld.model.arrays import Table
from sentineld.model.records import PAGE_BYTES, PAGE_RUN_DTYPE
from sentineld.observe.anonymous import AnonymousPages, without
from tests.unit.block_process import BLOCK_BYTES, block_process

BLOCK_PAGES = BLOCK_BYTES // PAGE_BYTES


def resident_in(runs: Table, first: int, pages: int) -> int:
    """Resident pages of [first, first + pages)."""
    start = np.maximum(runs["page"], first)
    end = np.minimum(runs["page"] + runs["pages"], first + pages)
    return int(np.maximum(end - start, 0)[runs["resident"]].sum())


def test_runs_follow_the_process() -> None:
    with block_process() as process:
        pages = AnonymousPages(process.pid)
        first = process.address // PAGE_BYTES
        runs = pages.runs()
        assert resident_in(runs, first, BLOCK_PAGES) == BLOCK_PAGES
        ends = runs["page"] + runs["pages"]
        assert (runs["page"][1:] >= ends[:-1]).all()
        process.run("block.madvise(mmap.MADV_DONTNEED, 0, 64 * mmap.PAGESIZE)")
        assert resident_in(pages.runs(), first, BLOCK_PAGES) == BLOCK_PAGES - 64
        part = pages.runs(first + 60, first + 70)
        assert part.tolist() == [(first + 64, 6, True)]
        # The read of a dropped page maps the zero page, which is not anonymous memory.
        process.run("block[0]")
        assert resident_in(pages.runs(), first, BLOCK_PAGES) == BLOCK_PAGES - 64
        pages.close()


def test_shared_memory_is_not_anonymous() -> None:
    with block_process() as process:
        pages = AnonymousPages(process.pid)
        before = int(pages.runs()["pages"].sum())
        process.run("shared = mmap.mmap(-1, 16 << 20); shared[:] = bytes(16 << 20)")
        assert int(pages.runs()["pages"].sum()) - before < (8 << 20) // PAGE_BYTES
        pages.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="frame numbers need CAP_SYS_ADMIN")
def test_resident_pages_have_different_frames() -> None:
    with block_process() as process:
        pages = AnonymousPages(process.pid)
        first = process.address // PAGE_BYTES
        frames = pages.frames(np.array([first, first + 1, 1]))
        assert frames[0] != frames[1]
        assert (frames[:2] > 0).all()
        assert frames[2] == 0
        pages.close()


def test_after_the_exit_the_address_space_is_gone() -> None:
    with block_process() as process:
        pages = AnonymousPages(process.pid)
        pages.require_address_space()
    for read in (pages.require_address_space, pages.runs):
        with pytest.raises(ProcessLookupError):
            read()
    pages.close()
    # Another thread may read frames when the session has ended.
    with pytest.raises(ProcessLookupError):
        pages.frames(np.array([1]))


def test_only_one_object_is_open_for_a_process() -> None:
    with block_process() as process:
        pages = AnonymousPages(process.pid)
        with pytest.raises(SentinelError, match="another daemon") as caught:
            AnonymousPages(process.pid)
        assert caught.value.code == "busy"
        pages.close()
        AnonymousPages(process.pid).close()


def ranges(*rows: tuple[int, int]) -> np.ndarray:
    return np.array(rows, np.int64).reshape(-1, 2)


def test_ranges_are_cut_out() -> None:
    runs = np.array([(10, 10, True), (30, 5, False), (40, 5, True)], PAGE_RUN_DTYPE)
    assert without(runs, ranges()).tolist() == runs.tolist()
    found = without(runs, ranges((12, 14), (14, 15), (18, 31), (44, 60)))
    assert found.tolist() == [
        (10, 2, True),
        (15, 3, True),
        (31, 4, False),
        (40, 4, True),
    ]
    assert len(without(runs, ranges((0, 100)))) == 0
    assert len(without(runs[:0], ranges((0, 100)))) == 0


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(1, 6), st.booleans()), max_size=8),
    st.lists(st.tuples(st.integers(0, 4), st.integers(1, 6)), max_size=8),
)
def test_exactly_the_pages_outside_the_ranges_remain(
    steps: list[tuple[int, int, bool]], holes: list[tuple[int, int]]
) -> None:
    """steps: (gap before the run, its size, whether it is resident) of each run; holes: (gap before
    the range, its size) of each excluded range. Gaps and sizes are in pages."""
    runs, excluded, at = [], [], 0
    for gap, pages, resident in steps:
        runs.append((at + gap, pages, resident))
        at += gap + pages
    at = 0
    for gap, pages in holes:
        excluded.append((at + gap, at + gap + pages))
        at += gap + pages
    found = without(np.array(runs, PAGE_RUN_DTYPE), ranges(*excluded))
    assert pages_of(found.tolist()) == [
        (page, resident)
        for page, resident in pages_of(runs)
        if not any(start <= page < end for start, end in excluded)
    ]
    assert all(pages > 0 for pages in found["pages"])


def pages_of(runs: list[tuple[int, int, bool]]) -> list[tuple[int, bool]]:
    return [(page + i, resident) for page, pages, resident in runs for i in range(pages)]
