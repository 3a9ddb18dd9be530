# SPDX-License-Identifier: Apache-2.0
"""In a sequence of faults, the pager reads pages ahead and evicts other pages to make room for
them. Pages that are accessed repeatedly stay in memory."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from tests.unit.shim.paged import PAGE, Paged, backing_file
from tests.unit.shim.pager.conftest import BUDGET, FILE_PAGES, PAGES, Link


def access(paged: Paged, pages: Iterable[int]) -> None:
    """Access pages that were filled with seed 1. After each access, wait until the pager moves no
    page."""
    for page in pages:
        assert paged.holds(page, 1, 1)
        paged.settle()


def test_a_sequence_of_faults_reads_twice_as_many_pages_each_time(
    start: Callable[..., Paged],
) -> None:
    paged = start(budget=PAGES)
    paged.fill_and_evict(1000)
    read: list[int] = []
    for first in (0, 32, 96, 224, 480):
        before = paged.counts().bytes_read
        assert paged.holds(first, 1, 1)
        paged.settle()
        read.append((paged.counts().bytes_read - before) // PAGE)
    assert read == [32, 64, 128, 256, 512]
    assert paged.holds(0, 1000, 1)


def test_a_sequence_reads_ahead_once_frames_are_free(start: Callable[..., Paged]) -> None:
    """All frames are in use at each fault. The pages that the fault reads ahead arrive when other
    pages have been evicted, without a further fault."""
    paged = start(pages=1400, budget=1000)
    paged.fill_and_evict(1000)
    paged.set_budget(BUDGET)
    paged.born(1000, BUDGET)
    paged.fill(1000, BUDGET, 2)
    # This call fetches no page, because no frame is free. But from now on, the pages 0 to 999 are
    # planned to be in memory.
    assert paged.fetch(0, 1000) == 0
    read: list[int] = []
    for first in (0, 32, 96):
        before = paged.counts().bytes_read
        assert paged.holds(first, 1, 1)
        paged.settle()
        read.append((paged.counts().bytes_read - before) // PAGE)
    assert read == [32, 64, 128]
    assert paged.counts().faults == 3
    assert paged.counts().frames <= BUDGET
    assert paged.holds(0, 1000, 1)
    assert paged.holds(1000, BUDGET, 2)


def test_pages_owed_to_a_sequence_are_not_read_after_their_death(
    start: Callable[..., Paged],
) -> None:
    paged = start(pages=1400, budget=1000)
    paged.fill_and_evict(1000)
    paged.set_budget(BUDGET)
    paged.born(1000, BUDGET)
    paged.fill(1000, BUDGET, 2)
    access(paged, (0, 32))
    assert paged.holds(96, 1, 1)
    paged.dropped(0, 1000)
    paged.settle()
    assert paged.counts().bytes_read <= (32 + 64 + 128) * PAGE
    paged.born(0, 200)
    paged.fill(0, 200, 3)
    assert paged.holds(0, 200, 3)
    assert paged.holds(1000, BUDGET, 2)


ROW = 40


def rows_from_the_end(pages: int) -> list[int]:
    """A tensor's pages in the order in which the backward pass of a recurrent network accesses
    them: the rows in descending order, the pages of a row in ascending order."""
    return [row + page for row in range(pages - ROW, -1, -ROW) for page in range(ROW)]


def test_a_descending_sequence_reads_ahead(start: Callable[..., Paged]) -> None:
    paged = start(budget=PAGES)
    paged.fill_and_evict(1000)
    faults: list[int] = []
    for page in rows_from_the_end(1000):
        before = paged.counts().faults
        access(paged, [page])
        if paged.counts().faults > before:
            faults.append(page)
    # The first two faults read the last row. The other five faults each read the row of their page.
    # They also read the 1, 1, 3, 6 and at most 12 rows before this row, respectively. Only 8 rows
    # lie before page 320.
    assert faults == [960, 992, 920, 840, 760, 600, 320]
    assert paged.counts().bytes_read == 1000 * PAGE


def test_a_descending_sequence_ends_at_its_tensor(start: Callable[..., Paged]) -> None:
    paged = start(pages=2000, budget=2000)
    paged.fill_and_evict(1000, 200)
    access(paged, [1000 + page for page in rows_from_the_end(200)])
    assert paged.counts().bytes_read == 200 * PAGE
    # The next fault is in another tensor, so it begins a new sequence.
    assert paged.holds(1000 - ROW, ROW, 1)
    paged.settle()
    assert paged.counts().bytes_read == (200 + ROW) * PAGE


def test_a_descending_sequence_reads_ahead_once_frames_are_free(
    start: Callable[..., Paged],
) -> None:
    paged = start(pages=1700, budget=1000)
    paged.fill_and_evict(1000)
    budget = 700
    paged.set_budget(budget)
    paged.born(1000, budget)
    paged.fill(1000, budget, 2)
    # This call fetches no page, because no frame is free. But from now on, the pages 0 to 999 are
    # planned to be in memory.
    assert paged.fetch(0, 1000) == 0
    access(paged, rows_from_the_end(1000))
    assert paged.counts().faults <= 9
    assert paged.counts().bytes_read <= 1024 * PAGE
    assert paged.counts().frames <= budget
    assert paged.holds(0, 1000, 1)
    assert paged.holds(1000, budget, 2)


class Rows(ctypes.Structure):
    """struct rows of rows.c."""

    _fields_ = (("begin", ctypes.c_uint64), ("owed", ctypes.c_uint32))


def test_pages_of_a_row_that_begins_earlier_are_owed_no_longer(link: Link) -> None:
    function = link("rows.c", replaced=None).test_row_that_begins_earlier
    function.argtypes, function.restype = (ctypes.c_uint64, ctypes.c_uint64), Rows
    for page in (7, 3, 0):
        found = function(8, page)
        # All pages before the fault's page are "owed": they are still to be fetched for the stream
        # (the sequence of accesses; see rows.c). No page comes before page 0, so no page is owed
        # after the fault at page 0.
        assert (found.begin, found.owed) == (page, page)


def test_accesses_at_random_read_few_pages(start: Callable[..., Paged]) -> None:
    paged = start(budget=PAGES)
    paged.fill_and_evict(1000)
    access(paged, (800, 100, 500, 300))
    assert paged.counts().bytes_read == 4 * 32 * PAGE


@pytest.fixture(scope="module")
def timing(link: Link) -> ctypes.CDLL:
    """The pager with a FAULT_READ_NS_MAX of 600 s, so that it also counts slow reads: on a busy
    machine, any read can be slow."""
    return link(defined=("faults", f"FAULT_READ_NS_MAX={600 * 10**9}ull"))


@pytest.fixture
def timed(timing: ctypes.CDLL, tmp_path: Path) -> Iterator[Callable[[int], Paged]]:
    file = backing_file(tmp_path, FILE_PAGES)
    started: list[Paged] = []

    def start_timed(budget: int) -> Paged:
        started.append(Paged(timing, file, FILE_PAGES, PAGES, budget))
        return started[-1]

    yield start_timed
    for paged in started:
        paged.stop()
    os.close(file)


def test_reads_of_faults_are_timed(timed: Callable[[int], Paged]) -> None:
    paged = timed(PAGES)
    paged.fill_and_evict(1000)
    began_ns = time.monotonic_ns()
    access(paged, (800, 100, 500, 300))
    assert paged.counts().fault_reads == 4
    assert 0 < paged.counts().fault_read_ns < time.monotonic_ns() - began_ns
    # Sequential faults also read pages ahead, so their reads are not counted.
    access(paged, (132, 196, 324))
    assert paged.counts().fault_reads == 4


def test_the_read_of_a_fault_that_also_reads_skipped_pages_is_not_timed(
    timed: Callable[[int], Paged],
) -> None:
    paged = timed(PAGES)
    paged.fill_and_evict(72)
    access(paged, (0, 40))
    # The second fault reads the last 32 pages and also the pages 32 to 39.
    assert paged.counts().bytes_read == 72 * PAGE
    assert paged.counts().fault_reads == 1


def test_the_read_of_a_fault_that_finds_few_free_frames_is_not_timed(
    timed: Callable[[int], Paged],
) -> None:
    paged = timed(BUDGET)
    paged.fill_and_evict(100)
    paged.born(100, BUDGET - 5)
    paged.fill(100, BUDGET - 5, 2)
    # The thread that serves faults reads only five pages, because only five frames are free.
    access(paged, (0,))
    assert paged.counts().fault_reads == 0
    assert paged.holds(0, 32, 1)


def test_reading_ahead_ends_at_the_next_tensor(start: Callable[..., Paged]) -> None:
    paged = start(budget=PAGES)
    paged.fill_and_evict(300, 300)
    access(paged, (0, 32, 96, 224))
    assert paged.counts().bytes_read == 300 * PAGE
    assert paged.holds(0, 600, 1)


def test_many_sequences_of_faults_read_ahead(start: Callable[..., Paged]) -> None:
    """Access the first page of every image, then the second page of every image, and so on. Batch
    normalization accesses the channels of images in this order."""
    images, pages = 17, 200
    paged = start(pages=images * pages, budget=images * pages)
    paged.fill_and_evict(images * pages)
    for page in range(pages):
        for image in range(images):
            assert paged.holds(image * pages + page, 1, 1)
            paged.settle()
    # If one image were read alone, three faults would read its 200 pages: 32, twice as many, and
    # the remaining 104. Without reading ahead, each fault would read 32 pages, so each image would
    # cause seven faults.
    assert paged.counts().faults <= images * 4


def test_pages_that_a_sequence_has_yet_to_pass_are_not_evicted(
    start: Callable[..., Paged],
) -> None:
    paged = start(budget=400)
    paged.born(0, 300)
    paged.fill(0, 300, 1)
    paged.evict(0, 150)
    paged.settle()
    paged.born(300, 250)
    paged.fill(300, 250, 2)
    assert paged.counts().frames == 400
    access(paged, range(300))
    assert paged.counts().bytes_read == 150 * PAGE


def test_pages_that_a_descending_sequence_has_yet_to_pass_are_not_evicted(
    start: Callable[..., Paged],
) -> None:
    paged = start(budget=400)
    paged.born(0, 280)
    paged.fill(0, 280, 1)
    paged.evict(120, 160)
    paged.settle()
    paged.born(300, 240)
    paged.fill(300, 240, 2)
    # The free frames suffice for the first row. The faults after this row show that the sequence
    # descends.
    assert paged.counts().frames == 400 - ROW
    access(paged, rows_from_the_end(280))
    assert paged.counts().bytes_read == 160 * PAGE


def test_a_sequence_evicts_nothing_while_the_budget_has_room(start: Callable[..., Paged]) -> None:
    paged = start(budget=PAGES)
    paged.fill_and_evict(500)
    written = paged.counts().bytes_written
    paged.born(500, 400)
    paged.fill(500, 400, 2)
    access(paged, range(500))
    assert paged.counts().bytes_written == written


def test_pages_that_are_accessed_again_and_again_stay(library: ctypes.CDLL, tmp_path: Path) -> None:
    """A matrix product reads an operand of 3,000 pages ten times. The operand is not planned to be
    in memory, but fits if some of the planned pages are evicted."""
    operand, planned, budget = 3000, 4500, 6000
    file = backing_file(tmp_path, 3 * budget)
    paged = Paged(library, file, 3 * budget, operand + planned, budget)
    paged.born(0, operand)
    paged.fill(0, operand, 1)
    paged.evict(0, operand)
    paged.settle()
    paged.born(operand, planned)
    paged.fill(operand, planned, 2)
    for _ in range(10):
        for page in range(operand):
            assert paged.holds(page, 1, 1)
    # If the operand's pages were evicted too early (see victims.c), they would all be read from the
    # file in each of the ten passes.
    assert paged.counts().bytes_read <= 2 * operand * PAGE
    assert paged.counts().frames <= budget
    paged.stop()
    os.close(file)
