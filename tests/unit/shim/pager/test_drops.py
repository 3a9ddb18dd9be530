# SPDX-License-Identifier: Apache-2.0
"""A drop wakes the threads that wait for its pages, and skips pages that were never used."""

from __future__ import annotations

import ctypes
import os
import resource
from pathlib import Path

from tests.unit.shim.paged import Paged, backing_file
from tests.unit.shim.pager.conftest import FILE_PAGES, PAGES
from tests.unit.shim.pager.holding import Reader, hold

WITHIN_S = 20
"""Time for a woken thread to end on a busy machine."""


def test_a_drop_wakes_a_thread_that_waits_for_a_page_in_transit(
    held: ctypes.CDLL, tmp_path: Path
) -> None:
    file = backing_file(tmp_path, FILE_PAGES)
    paged = Paged(held, file, FILE_PAGES, PAGES, PAGES)
    paged.fill_and_evict(64)
    with hold(held, "reads"):
        reader = Reader(paged, 0)
        paged.dropped(0, 64)
    assert reader.ends(WITHIN_S)
    assert not paged.words[0].any()
    paged.stop()
    os.close(file)


def test_a_drop_wakes_a_thread_that_waits_in_the_queue(held: ctypes.CDLL, tmp_path: Path) -> None:
    """The thread's fault needs 32 frames, and none is free. Some of its pages are dropped."""
    file = backing_file(tmp_path, FILE_PAGES)
    paged = Paged(held, file, FILE_PAGES, PAGES, 64)
    paged.fill_and_evict(64)
    paged.born(64, 64)
    paged.fill(64, 64, 1)
    with hold(held, "checksums"):
        assert paged.evict(64, 64) == 64
        reader = Reader(paged, 0)
        paged.dropped(0, 16)
    assert reader.ends(WITHIN_S)
    assert not paged.words[0].any()
    assert paged.holds(16, 112, 1)
    paged.stop()
    os.close(file)


def test_a_drop_skips_pages_that_were_never_used(held: ctypes.CDLL, tmp_path: Path) -> None:
    """The pager's tables have an entry for each page of a range. They are mostly untouched."""
    pages = 1 << 20
    file = backing_file(tmp_path, FILE_PAGES)
    paged = Paged(held, file, FILE_PAGES, pages, PAGES)
    paged.born(0, 300)
    paged.fill(0, 300, 1)
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    paged.dropped(200, pages - 200)
    faults = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before
    assert paged.counts().frames <= 512
    assert faults < 20, faults
    assert paged.holds(0, 200, 1)
    assert not paged.words[299].any()
    paged.stop()
    os.close(file)
