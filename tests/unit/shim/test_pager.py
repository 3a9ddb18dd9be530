# SPDX-License-Identifier: Apache-2.0
"""The pager stays within its budget and preserves the content of every page."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.shim.harness import COMPILER, NATIVE
from tests.unit.shim.paged import PAGE, Paged, backing_file, load, pager_problem
from tests.unit.waiting import wait

ROOT = Path(__file__).parents[3]
PAGES = 1200
BUDGET = 400
FILE_PAGES = 3 * PAGES
BLOCK_PAGES = 512  # homes.h
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")

pytestmark = pytest.mark.skipif(pager_problem() is not None, reason=pager_problem() or "")


@pytest.fixture(scope="module", params=["counted", "uncounted"])
def library_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled pager. "uncounted": with the defect of Linux 6.18 that frames.c works around."""
    path = tmp_path_factory.mktemp("pager") / "pager.so"
    sources = sorted(map(str, (NATIVE / "pager").glob("*.c")))
    flags = "-std=gnu11 -O2 -g -Wall -Wextra -Werror -fPIC -shared -pthread".split()
    if request.param == "uncounted":
        sources.append(str(Path(__file__).with_name("uncounted.c")))
        flags += ["-Wl,--wrap=ioctl", "-I", str(NATIVE / "pager")]
    subprocess.run([COMPILER, *flags, "-o", str(path), *sources], check=True)
    return path


@pytest.fixture(scope="module")
def library(library_path: Path) -> ctypes.CDLL:
    return load(library_path)


@pytest.fixture
def start(library: ctypes.CDLL, tmp_path: Path) -> Iterator[Callable[..., Paged]]:
    started: list[tuple[Paged, int]] = []

    def start_one(pages: int = PAGES, budget: int = BUDGET) -> Paged:
        file = backing_file(tmp_path, FILE_PAGES)
        started.append((Paged(library, file, FILE_PAGES, pages, budget), file))
        return started[-1][0]

    yield start_one
    for paged, file in started:
        paged.stop()
        os.close(file)


def test_the_budget_is_kept(start: Callable[..., Paged]) -> None:
    paged = start()
    for seed in (1, 2):
        for first in range(0, PAGES, 100):
            paged.born(first, 100)
            paged.fill(first, 100, seed)
            assert paged.counts().frames <= BUDGET
    for first in range(0, PAGES, 100):
        assert paged.holds(first, 100, 2)
        assert paged.counts().frames <= BUDGET
    counts = paged.counts()
    assert counts.faults > 0
    assert counts.overruns == counts.write_error == 0
    assert counts.bytes_written >= (PAGES - BUDGET) * PAGE


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


def test_accesses_at_random_read_few_pages(start: Callable[..., Paged]) -> None:
    paged = start(budget=PAGES)
    paged.fill_and_evict(1000)
    for first in (800, 100, 500, 300):
        assert paged.holds(first, 1, 1)
        paged.settle()
    assert paged.counts().bytes_read == 4 * 32 * PAGE


def test_reads_of_faults_are_timed(start: Callable[..., Paged]) -> None:
    paged = start(budget=PAGES)
    paged.fill_and_evict(1000)
    began_ns = time.monotonic_ns()
    for first in (800, 100, 500, 300):
        assert paged.holds(first, 1, 1)
    # An access continues before its fault is counted, so wait. Reads that take very long are not
    # counted, so two of the four suffice.
    wait(lambda: paged.counts().fault_reads >= 2)
    assert 0 < paged.counts().fault_read_ns < time.monotonic_ns() - began_ns
    # Faults in a sequence read ahead, and their reads are not counted.
    for first in (132, 196, 324):
        paged.settle()
        assert paged.holds(first, 1, 1)
    paged.settle()
    assert paged.counts().fault_reads <= 4


def test_reading_ahead_ends_at_the_next_tensor(start: Callable[..., Paged]) -> None:
    paged = start(budget=PAGES)
    paged.fill_and_evict(300, 300)
    for first in (0, 32, 96, 224):
        assert paged.holds(first, 1, 1)
        paged.settle()
    assert paged.counts().bytes_read == 300 * PAGE
    assert paged.holds(0, 600, 1)


def test_many_sequences_of_faults_read_ahead(start: Callable[..., Paged]) -> None:
    """Batch normalization accesses one channel of every image in turn."""
    images, pages = 17, 200
    paged = start(pages=images * pages, budget=images * pages)
    paged.fill_and_evict(images * pages)
    for page in range(pages):
        for image in range(images):
            assert paged.holds(image * pages + page, 1, 1)
            paged.settle()
    # If one image were read alone, three faults would read its 32, 64 and 104 pages. Without
    # reading ahead, each fault would read 32 pages, so each image would need seven.
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
    for page in range(300):
        assert paged.holds(page, 1, 1)
        paged.settle()
    assert paged.counts().bytes_read == 150 * PAGE


def test_a_birth_does_not_wait_for_frames(start: Callable[..., Paged]) -> None:
    paged = start()
    paged.born(0, BUDGET)
    paged.fill(0, BUDGET, 1)
    paged.born(BUDGET, 200)
    paged.settle()
    assert paged.counts().bytes_written == 0
    paged.evict(0, 200)
    paged.settle()
    # The pages got the frames of evicted pages before they were accessed.
    paged.fill(BUDGET, 200, 2)
    assert paged.counts().births_by_fault == paged.counts().waits == 0
    assert paged.holds(0, BUDGET, 1)
    assert paged.holds(BUDGET, 200, 2)


def test_born_pages_without_frames_get_some_when_they_are_accessed(
    start: Callable[..., Paged],
) -> None:
    paged = start()
    paged.born(0, PAGES)
    for first in range(0, PAGES, 100):
        paged.fill(first, 100, 1)
        assert paged.counts().frames <= BUDGET
    assert 0 < paged.counts().births_by_fault < 20
    assert paged.holds(0, PAGES, 1)


def test_evicted_pages_get_no_frames_before_they_are_accessed(start: Callable[..., Paged]) -> None:
    paged = start()
    paged.born(0, BUDGET)
    paged.fill(0, BUDGET, 1)
    paged.born(BUDGET, 200)
    paged.evict(BUDGET + 100, 100)
    paged.evict(0, 300)
    paged.settle()
    paged.fill(BUDGET, 100, 2)
    assert paged.counts().births_by_fault == 0
    paged.fill(BUDGET + 100, 100, 2)
    assert paged.counts().births_by_fault == 1
    assert paged.holds(BUDGET, 200, 2)


def test_frames_go_to_an_accessed_page_before_a_birth(start: Callable[..., Paged]) -> None:
    paged = start()
    paged.born(0, BUDGET)
    paged.fill(0, BUDGET, 1)
    paged.born(BUDGET, BUDGET)
    paged.born(2 * BUDGET, 1)
    paged.fill(2 * BUDGET, 1, 2)
    assert paged.counts().bytes_written == PAGE
    assert paged.holds(2 * BUDGET, 1, 2)


def test_a_sequence_evicts_nothing_while_the_budget_has_room(start: Callable[..., Paged]) -> None:
    paged = start(budget=PAGES)
    paged.fill_and_evict(500)
    written = paged.counts().bytes_written
    paged.born(500, 400)
    paged.fill(500, 400, 2)
    for page in range(500):
        assert paged.holds(page, 1, 1)
        paged.settle()
    assert paged.counts().bytes_written == written


def test_born_pages_may_be_dropped_before_they_have_frames(start: Callable[..., Paged]) -> None:
    paged = start()
    paged.born(0, BUDGET)
    paged.born(BUDGET, BUDGET)
    paged.dropped(BUDGET, BUDGET)
    paged.dropped(0, BUDGET)
    paged.settle()
    paged.fill(2 * BUDGET, 1, 1)
    # No frames are kept for the dropped pages.
    assert paged.evict(2 * BUDGET, 1) == 1
    paged.settle()
    assert paged.fetch(2 * BUDGET, 1) == 1


def test_moves_may_reach_beyond_the_pages_that_were_ever_born(start: Callable[..., Paged]) -> None:
    paged = start()
    paged.born(0, 300)
    paged.fill(0, 300, 1)
    assert paged.evict(600, PAGES - 600) == 0
    assert paged.evict(200, PAGES - 200) == 100
    paged.settle()
    assert paged.fetch(600, PAGES - 600) == PAGES - 600
    assert paged.fetch(250, PAGES - 250) == PAGES - 250
    paged.settle()
    assert paged.holds(0, 300, 1)
    assert paged.counts().faults > 0
    paged.born(300, 10)  # directly above the highest page that has ever been born
    paged.fill(300, 10, 1)
    assert paged.evict(300, PAGES - 300) == 10
    paged.settle()
    assert paged.holds(300, 10, 1)


def test_unchanged_pages_are_not_written_again(start: Callable[..., Paged]) -> None:
    paged = start()
    paged.born(0, 300)
    paged.fill(0, 300, 1)
    paged.evict(0, 300)
    paged.settle()
    assert paged.holds(0, 300, 1)
    paged.words[7, 3] += 1
    written = paged.counts().bytes_written
    assert paged.evict(0, 300) == 300
    paged.settle()
    counts = paged.counts()
    assert (counts.bytes_written - written, counts.clean_pages) == (PAGE, 299)
    paged.words[7, 3] -= 1
    assert paged.holds(0, 300, 1)


def test_dropped_pages_are_neither_written_nor_read(start: Callable[..., Paged]) -> None:
    paged = start()
    for seed in range(1, 20):
        paged.born(0, BUDGET)
        paged.fill(0, BUDGET, seed)
        paged.dropped(0, BUDGET)
    counts = paged.counts()
    assert counts.bytes_written == counts.bytes_read == counts.waits == 0


def test_pages_are_fetched_before_their_use(start: Callable[..., Paged]) -> None:
    paged = start()
    paged.born(0, 300)
    paged.fill(0, 300, 1)
    paged.evict(0, 300)
    paged.settle()
    paged.fetch(0, 300)
    paged.settle()
    assert paged.holds(0, 300, 1)
    assert paged.counts().faults == 0


def frame_numbers(paged: Paged) -> npt.NDArray[np.int64]:
    """The page frame number of each page; 0 unless root reads it. All pages must be resident."""
    first = paged.words.ctypes.data // PAGE
    entries = np.fromfile("/proc/self/pagemap", np.uint64, len(paged.words), offset=8 * first)
    assert (entries >> np.uint64(63)).all()
    return (entries & np.uint64((1 << 55) - 1)).astype(np.int64)


@pytest.mark.skipif(not HUGE_PAGES.exists(), reason=f"there is no {HUGE_PAGES}")
def test_frames_of_consecutive_pages_stay_adjacent(start: Callable[..., Paged]) -> None:
    paged = start(budget=3 * BLOCK_PAGES)
    random = Random(1)
    for first in range(0, PAGES, 100):
        paged.born(first, 100)
        paged.fill(first, 100, 1)
    for _ in range(200):
        first, pages = random.randrange(PAGES - 100), random.randrange(20, 100)
        random.choice([paged.evict, paged.fetch])(first, pages)
        paged.settle()
    paged.fetch(0, PAGES)
    paged.settle()
    frames = frame_numbers(paged)
    if not frames.any():
        pytest.skip("only root may read the numbers of page frames")
    if "[never]" in HUGE_PAGES.read_text():
        pytest.skip(f"{HUGE_PAGES} is never")
    # If frames did not return to their homes (see frames.h), hardly any would be adjacent.
    assert np.mean(np.diff(frames) == 1) > 0.75
    assert paged.holds(0, PAGES, 1)


def test_a_smaller_budget_evicts_pages(start: Callable[..., Paged]) -> None:
    paged = start()
    paged.born(0, BUDGET)
    paged.fill(0, BUDGET, 1)
    paged.set_budget(BUDGET // 4)
    paged.settle()
    assert paged.counts().frames <= BUDGET // 4
    assert paged.holds(0, BUDGET, 1)


def test_pages_accessed_while_they_are_evicted_stay_within_the_budget(
    start: Callable[..., Paged],
) -> None:
    paged = start()
    paged.born(0, BUDGET)
    paged.fill(0, BUDGET, 1)
    for _ in range(20):
        paged.evict(0, BUDGET)
        for page in reversed(range(BUDGET)):
            assert paged.holds(page, 1, 1)
            assert paged.counts().frames <= BUDGET
    assert paged.counts().overruns == 0


def test_pages_used_before_the_pager_starts_are_kept(library: ctypes.CDLL, tmp_path: Path) -> None:
    file = backing_file(tmp_path, FILE_PAGES)
    paged = Paged(library, file, FILE_PAGES, PAGES, BUDGET, used=10)
    assert paged.holds(0, 10, 1)
    assert paged.evict(0, 10) == 10
    paged.settle()
    assert paged.holds(0, 10, 1)
    assert paged.counts().births_by_fault == 0
    paged.stop()
    os.close(file)


def test_pages_born_by_accesses_stay_when_the_pager_stops(
    library: ctypes.CDLL, tmp_path: Path
) -> None:
    file = backing_file(tmp_path, FILE_PAGES)
    paged = Paged(library, file, FILE_PAGES, PAGES, BUDGET)
    # An access to an absent page is a birth.
    paged.fill(0, 10, 1)
    assert paged.counts().births_by_fault == 10
    assert paged.holds(0, 10, 1)
    paged.stop()
    assert paged.holds(0, 10, 1)
    os.close(file)


def test_pages_that_the_program_drops_itself_read_as_zeros(start: Callable[..., Paged]) -> None:
    paged = start(budget=2 * BLOCK_PAGES)
    paged.born(0, 100)
    paged.fill(0, 100, 1)
    paged.dropped(50, 50)  # leaves free frames that still have their old content
    paged.discard(10, 20)
    assert not paged.words[10:20].any()
    assert paged.evict(0, 50) == 40  # finds that pages 20 to 29 are absent
    paged.settle()
    assert not paged.words[20:30].any()
    assert paged.holds(0, 10, 1)
    assert paged.holds(30, 20, 1)


def test_pages_that_the_program_drops_itself(start: Callable[..., Paged]) -> None:
    paged = start(budget=2 * BLOCK_PAGES)
    paged.born(0, 100)
    paged.fill(0, 100, 1)
    paged.discard(10, 20)
    paged.fill(10, 5, 2)  # The pager still regards these pages as present.
    assert paged.evict(0, 100) == 85
    paged.settle()
    paged.fill(15, 15, 2)
    assert paged.holds(0, 10, 1)
    assert paged.holds(10, 20, 2)
    assert paged.holds(30, 70, 1)
    assert paged.counts().births_by_fault == 20
    assert paged.counts().frames <= 2 * BLOCK_PAGES


@given(seed=st.integers(0, 2**32 - 1), word=st.integers(0, 511), bit=st.integers(0, 63))
def test_the_checksum_finds_any_changed_word(
    library: ctypes.CDLL, seed: int, word: int, bit: int
) -> None:
    page = np.random.default_rng(seed).integers(0, 1 << 64, 512, np.uint64)

    def checksums() -> set[int]:
        """The checksums of the page, with and without vector instructions."""
        found = {library.checksum(page.ctypes.data, 4096)}
        return found | {library.checksum_portable(page.ctypes.data, 4096)}

    (before,) = checksums()
    page[word] ^= np.uint64(1 << bit)
    (after,) = checksums()
    assert before != after


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(
            (
                *("born", "born", "born and filled", "dropped"),
                *("evict", "fetch", "fill", "fill", "check", "settle"),
            )
        ),
        st.integers(0, PAGES - 1),
        st.integers(1, 500),
    ),
    min_size=1,
    max_size=60,
)


ABSENT, UNFILLED = -1, 0


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(operations=OPERATIONS, budget=st.integers(40, 2 * PAGES))
def test_any_sequence_keeps_the_content(
    library: ctypes.CDLL, tmp_path: Path, operations: list[tuple[str, int, int]], budget: int
) -> None:
    file = backing_file(tmp_path, FILE_PAGES)
    paged = Paged(library, file, FILE_PAGES, PAGES, budget)
    seeds = [ABSENT] * PAGES
    for number, (operation, first, count) in enumerate(operations, 1):
        last = min(first + count, PAGES)
        if operation in ("born", "born and filled"):
            paged.born(first, last - first)
        elif operation in ("dropped", "evict", "fetch"):
            getattr(paged, operation)(first, last - first)
        elif operation == "settle":
            paged.settle()
            assert paged.counts().frames <= budget
        if operation == "dropped":
            seeds[first:last] = [ABSENT] * (last - first)
        for page in range(first, last):
            if operation == "born":
                seeds[page] = max(seeds[page], UNFILLED)
            elif operation == "born and filled" or (operation == "fill" and seeds[page] != ABSENT):
                paged.fill(page, 1, number)
                seeds[page] = number
            elif operation == "check" and seeds[page] > UNFILLED:
                assert paged.holds(page, 1, seeds[page])
    for page, seed in enumerate(seeds):
        assert seed <= UNFILLED or paged.holds(page, 1, seed)
    assert paged.counts().overruns == 0
    paged.stop()
    for page, seed in enumerate(seeds):
        assert seed <= UNFILLED or paged.holds(page, 1, seed)
    os.close(file)


def run_case(library_path: Path, case: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.unit.shim.paged", str(library_path), case, str(folder)]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize(
    "case",
    [
        *(
            "write_fails",
            "disk_full",
            "file_full",
            "fork_children",
            "fork_overlaps",
            "kernel_reads",
        ),
        "several_operands",
    ],
)
def test_in_a_process_of_its_own(library_path: Path, case: str, tmp_path: Path) -> None:
    done = run_case(library_path, case, tmp_path)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("read_corrupt", "a page read back from the file is corrupt"),
        ("read_fails", "cannot read pages back from the file"),
    ],
)
def test_lost_pages_end_the_training(
    library_path: Path, case: str, message: str, tmp_path: Path
) -> None:
    """The training ends with a message, and never continues with wrong data."""
    done = run_case(library_path, case, tmp_path)
    assert done.returncode == -6
    assert message in done.stderr
    assert done.stderr.rstrip().endswith("the training cannot go on")
    assert done.stdout == ""
