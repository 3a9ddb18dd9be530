# SPDX-License-Identifier: Apache-2.0
"""Pages that the kernel has pinned stay in memory until they are dropped, and cost little time.
Pages that a forked child shares are evicted, even if the program drops one of them meanwhile. Pages
that are accessed while they are evicted stay in memory."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from threading import Thread

import pytest

from tests.unit.shim.paged import PAGE, PATIENCE_S, Paged, backing_file
from tests.unit.shim.pager.conftest import FILE_PAGES, PAGES, Link
from tests.unit.shim.pager.holding import Reader, hold

PINNED = 100


def test_after_long_tries_pinned_pages_are_tried_only_once_more(link: Link, tmp_path: Path) -> None:
    """Here, any tries are long. PINNED_NS is 600 s instead of 100 ms, because on a busy machine
    this test's evictions can take longer than 100 ms."""
    library = link("busy.c", defined=("evict", "LONG_TRIES_NS=0", f"PINNED_NS={600 * 10**9}ull"))
    file = backing_file(tmp_path, FILE_PAGES)
    paged = Paged(library, file, FILE_PAGES, PAGES, PAGES)
    paged.born(0, 300)
    paged.fill(0, 300, 1)
    busy_from, busy_to = (ctypes.c_uint64.in_dll(library, f"busy_{end}") for end in ("from", "to"))
    first = paged.words.ctypes.data + 50 * PAGE
    busy_to.value, busy_from.value = first + PINNED * PAGE, first
    assert paged.evict(0, 300) == 300 - PINNED
    paged.settle()
    # The pager tries to move the first pinned page nine times (1 + BUSY_TRIES in evict.c), and all
    # further pinned pages twice (1 + BUSY_TRIES_LATER).
    busy_tries = ctypes.c_uint.in_dll(library, "busy_tries")
    assert busy_tries.value == 9 + 2 * (PINNED - 1)
    assert paged.evict(50, PINNED) == 0
    assert busy_tries.value == 9 + 2 * (2 * PINNED - 1)
    assert paged.holds(50, PINNED, 1)
    assert paged.counts().faults == 0
    busy_to.value = busy_from.value = 0
    assert paged.evict(0, 300) == PINNED
    paged.settle()
    assert paged.holds(0, 300, 1)
    paged.stop()
    os.close(file)


@pytest.mark.parametrize(
    "limits",
    [
        pytest.param(("LONG_TRIES_NS=0", "PINNED_NS=0"), id="after a while"),
        pytest.param((f"LONG_TRIES_NS={600 * 10**9}ull",), id="after short tries"),
    ],
)
def test_each_busy_page_is_tried_often(link: Link, limits: tuple[str, ...], tmp_path: Path) -> None:
    library = link("busy.c", defined=("evict", *limits))
    file = backing_file(tmp_path, FILE_PAGES)
    paged = Paged(library, file, FILE_PAGES, PAGES, PAGES)
    paged.born(0, 4)
    paged.fill(0, 4, 1)
    ctypes.c_uint64.in_dll(library, "busy_to").value = paged.words.ctypes.data + 4 * PAGE
    ctypes.c_uint64.in_dll(library, "busy_from").value = paged.words.ctypes.data
    assert paged.evict(0, 4) == 0
    assert ctypes.c_uint.in_dll(library, "busy_tries").value == 4 * 9
    paged.stop()
    os.close(file)


def test_the_time_of_many_short_tries_adds_up(link: Link, tmp_path: Path) -> None:
    """After its first failure, a page is tried for at least 8 ms, so the tries of seven pages
    exceed the limit."""
    limits = (f"LONG_TRIES_NS={50 * 10**6}ull", f"PINNED_NS={600 * 10**9}ull")
    library = link("busy.c", defined=("evict", *limits))
    file = backing_file(tmp_path, FILE_PAGES)
    paged = Paged(library, file, FILE_PAGES, PAGES, PAGES)
    paged.born(0, PINNED)
    paged.fill(0, PINNED, 1)
    ctypes.c_long.in_dll(library, "busy_try_ns").value = 10**6
    ctypes.c_uint64.in_dll(library, "busy_to").value = paged.words.ctypes.data + PINNED * PAGE
    ctypes.c_uint64.in_dll(library, "busy_from").value = paged.words.ctypes.data
    assert paged.evict(0, PINNED) == 0
    assert ctypes.c_uint.in_dll(library, "busy_tries").value <= 7 * 9 + 2 * (PINNED - 7)
    paged.stop()
    os.close(file)


def test_a_page_that_is_busy_for_a_moment_is_evicted(link: Link, tmp_path: Path) -> None:
    library = link("busy.c")
    file = backing_file(tmp_path, FILE_PAGES)
    paged = Paged(library, file, FILE_PAGES, PAGES, PAGES)
    paged.born(0, 4)
    paged.fill(0, 4, 1)
    tries, tries_max = (ctypes.c_uint.in_dll(library, f"busy_tries{end}") for end in ("", "_max"))
    tries_max.value = 5
    second = paged.words.ctypes.data + PAGE
    ctypes.c_uint64.in_dll(library, "busy_to").value = second + PAGE
    ctypes.c_uint64.in_dll(library, "busy_from").value = second
    assert paged.evict(0, 4) == 4
    assert tries.value == 5
    paged.settle()
    assert paged.holds(0, 4, 1)
    paged.stop()
    os.close(file)


def test_any_number_of_pinned_pages_can_be_dropped(link: Link, tmp_path: Path) -> None:
    pages = 8192
    library = link("busy.c")
    file = backing_file(tmp_path, pages)
    paged = Paged(library, file, pages, pages, pages)
    paged.born(0, pages)
    paged.fill(0, pages, 1)
    ctypes.c_uint64.in_dll(library, "busy_to").value = paged.words.ctypes.data + pages * PAGE
    ctypes.c_uint64.in_dll(library, "busy_from").value = paged.words.ctypes.data
    paged.dropped(0, pages)
    assert paged.counts().frames == 0
    # After each move that the kernel refuses, drops.c returns frames to the kernel: 1, then 2, 4
    # and so on, at most 256. So the kernel refuses 8 moves until 255 frames (1 + 2 + ... + 128) are
    # returned, and then one move for each further group of up to 256 frames.
    assert ctypes.c_uint.in_dll(library, "busy_tries").value == 8 + 8192 // 256
    paged.born(0, pages)
    paged.fill(0, pages, 2)
    assert paged.counts().frames == pages
    paged.stop()
    os.close(file)


def test_a_shared_page_can_be_dropped_while_it_is_evicted(link: Link, tmp_path: Path) -> None:
    """Before the pager evicts a page that a child shares, it writes to the page. If the page has
    been dropped, this write must not wait until the pager provides the page: the pager would wait
    for itself."""
    library = link("dropping.c")
    file = backing_file(tmp_path, FILE_PAGES)
    paged = Paged(library, file, FILE_PAGES, PAGES, PAGES)
    paged.born(0, 8)
    paged.fill(0, 8, 1)
    go_reading, go_writing = os.pipe()
    pid = paged.fork()
    if pid == 0:
        os.close(go_writing)
        os.read(go_reading, 1)
        os._exit(0 if paged.holds(0, 8, 1) else 1)
    os.close(go_reading)
    dropped = ctypes.c_uint64.in_dll(library, "dropped_page")
    dropped.value = paged.words.ctypes.data + 3 * PAGE
    begun: list[int] = []
    evicting = Thread(target=lambda: begun.append(paged.evict(0, 8)), daemon=True)
    evicting.start()
    evicting.join(PATIENCE_S)
    assert not evicting.is_alive(), "the pager waits for itself"
    assert dropped.value == 0
    assert begun == [7]
    paged.settle()
    assert paged.counts().overruns == 0
    os.close(go_writing)
    assert os.waitpid(pid, 0)[1] == 0, "the child read wrong numbers"
    assert paged.holds(0, 3, 1)
    assert paged.holds(4, 4, 1)
    assert not paged.words[3].any()
    paged.stop()
    os.close(file)


def test_a_page_that_stays_in_memory_does_not_count_as_evicted(
    held: ctypes.CDLL, tmp_path: Path
) -> None:
    """A thread accesses an unchanged page while it is being evicted. No frame is free."""
    file = backing_file(tmp_path, FILE_PAGES)
    paged = Paged(held, file, FILE_PAGES, PAGES, 32)
    paged.fill_and_evict(32)
    assert paged.holds(0, 32, 1)
    before = paged.counts().clean_pages
    with hold(held, "checksums"):
        assert paged.evict(0, 32) == 32
        reader = Reader(paged, 0)
    assert reader.ends(PATIENCE_S)
    paged.settle()
    assert paged.counts().clean_pages - before == 31
    assert paged.holds(0, 32, 1)
    paged.stop()
    os.close(file)
