# SPDX-License-Identifier: Apache-2.0
"""Frames that the kernel gave as huge pages stay adjacent, and single frames are exchanged for
them."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import numpy as np
import numpy.typing as npt
import pytest

from tests.unit.shim.paged import PAGE, Paged, backing_file
from tests.unit.shim.pager.conftest import BLOCK_PAGES, FILE_PAGES, PAGES, Link

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
HUGE_BLOCKS, SINGLE_BLOCKS = 4, 2
"""Numbers of blocks in the library `few_blocks`."""


@pytest.fixture(scope="module")
def few_blocks(link: Link) -> ctypes.CDLL:
    """The pager with so few blocks that the tests can fill all of them."""
    huge, single = f"HUGE_BLOCKS_MAX={HUGE_BLOCKS}u", f"SINGLE_BLOCKS={SINGLE_BLOCKS}u"
    return link("homed.c", None, defined=("frames", huge, single))


def frame_numbers(paged: Paged) -> npt.NDArray[np.int64]:
    """The page frame number of each page; 0 unless root reads it. All pages must be resident."""
    first = paged.words.ctypes.data // PAGE
    entries = np.fromfile("/proc/self/pagemap", np.uint64, len(paged.words), offset=8 * first)
    assert (entries >> np.uint64(63)).all()
    return (entries & np.uint64((1 << 55) - 1)).astype(np.int64)


def homed_share(paged: Paged) -> float:
    """The share of the pages whose frames came as a huge page and have homes. (Whether the kernel
    has huge pages depends on the fragmentation of the machine's memory.)"""
    return paged.ask("test_homed_pages") / len(paged.words)


def fill_all(paged: Paged) -> None:
    """Create all pages and fill them with seed 1."""
    pages = len(paged.words)
    for first in range(0, pages, 100):
        paged.born(first, min(100, pages - first))
        paged.fill(first, min(100, pages - first), 1)


def evict_in_parts(paged: Paged, first: int, pages: int) -> int:
    """Evict pages, at most 128 at a time. Returns the number of pages evicted."""
    begun = 0
    for part in range(first, first + pages, 128):
        begun += paged.evict(part, min(128, first + pages - part))
        paged.settle()
    return begun


@contextmanager
def living_child(paged: Paged) -> Iterator[None]:
    """A forked child that lives until the end of the `with` block."""
    reading, writing = os.pipe()
    pid = paged.fork()
    if pid == 0:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    os.close(reading)
    yield
    os.close(writing)
    assert os.waitpid(pid, 0)[1] == 0


@pytest.mark.skipif(not HUGE_PAGES.exists(), reason=f"there is no {HUGE_PAGES}")
def test_frames_of_consecutive_pages_stay_adjacent(start: Callable[..., Paged]) -> None:
    paged = start(budget=3 * BLOCK_PAGES)
    random = Random(1)
    fill_all(paged)
    # If the machine's free memory is fragmented, not all frames are adjacent at first.
    before = np.mean(np.diff(frame_numbers(paged)) == 1)
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
        pytest.skip(f"{HUGE_PAGES} is set to never")
    # If frames did not return to their homes (see frames.h), hardly any frames would be adjacent.
    assert np.mean(np.diff(frames) == 1) > 0.75 * before
    assert paged.holds(0, PAGES, 1)


def test_frames_have_homes_again_after_any_number_of_forks(
    few_blocks: ctypes.CDLL, tmp_path: Path
) -> None:
    """Each page that is evicted while a child shares it gets a single frame, so after a few forks
    every block has been used once."""
    file = backing_file(tmp_path, FILE_PAGES)
    paged = Paged(few_blocks, file, FILE_PAGES, PAGES, HUGE_BLOCKS * BLOCK_PAGES)
    fill_all(paged)
    assert homed_share(paged) == 1
    for _ in range(4):
        with living_child(paged):
            assert evict_in_parts(paged, 0, PAGES) == PAGES
        assert paged.fetch(0, PAGES) == PAGES
        paged.settle()
    for _ in range(2):
        assert evict_in_parts(paged, 0, PAGES) == PAGES
        assert paged.fetch(0, PAGES) == PAGES
        paged.settle()
    assert homed_share(paged) > 0.75
    assert paged.holds(0, PAGES, 1)
    paged.stop()
    os.close(file)


def test_single_frames_that_are_free_leave_homes_for_evictions(
    few_blocks: ctypes.CDLL, tmp_path: Path
) -> None:
    """Frames of pages that existed before the pager started are single. If all blocks for huge
    pages are in use, free single frames stay in the staging memory."""
    single, huge = (SINGLE_BLOCKS + 1) * BLOCK_PAGES, HUGE_BLOCKS * BLOCK_PAGES
    pages = single + huge
    file = backing_file(tmp_path, pages)
    paged = Paged(few_blocks, file, pages, pages, pages, used=single)
    paged.born(single, huge)
    paged.fill(single, huge, 1)
    assert evict_in_parts(paged, 0, single) == single
    assert paged.holds(0, pages, 1)
    paged.stop()
    os.close(file)


def test_frames_that_replace_those_of_a_child_have_no_homes(
    few_blocks: ctypes.CDLL, tmp_path: Path
) -> None:
    """The kernel gives another frame to each page that the program writes to while a child shares
    the page. Such a frame must not take the home of the frame that the child keeps."""
    file = backing_file(tmp_path, FILE_PAGES)
    paged = Paged(few_blocks, file, FILE_PAGES, PAGES, HUGE_BLOCKS * BLOCK_PAGES)
    fill_all(paged)
    with living_child(paged):
        for page in Random(1).sample(range(PAGES), PAGES):
            paged.fill(page, 1, 2)
        assert homed_share(paged) == 0
    paged.dropped(0, PAGES)
    fill_all(paged)
    assert homed_share(paged) == 1
    assert paged.holds(0, PAGES, 1)
    paged.stop()
    os.close(file)


def test_free_frames_that_are_scattered_at_a_fork_leave_room_for_huge_pages(
    few_blocks: ctypes.CDLL, tmp_path: Path
) -> None:
    """At the fork, each block has a few free frames. Huge pages need blocks without frames."""
    pages = HUGE_BLOCKS * BLOCK_PAGES
    file = backing_file(tmp_path, pages)
    paged = Paged(few_blocks, file, pages, pages, pages)
    fill_all(paged)
    for page in range(0, pages, 32):
        paged.dropped(page, 1)
    with living_child(paged):
        pass
    paged.dropped(0, pages)
    fill_all(paged)
    assert homed_share(paged) == 1
    paged.stop()
    os.close(file)
