# SPDX-License-Identifier: Apache-2.0
"""DAMON on page frames of a real process, and the regions that it reports."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from sentineld.base.background import Background
from sentineld.base.errors import SentinelError
from sentineld.model.arrays import Integers, Mask
from sentineld.model.records import PAGE_BYTES
from sentineld.observe import kdamond
from sentineld.observe.accessed_frames import accessed_frames, frames_problem
from sentineld.observe.anonymous import AnonymousPages
from sentineld.observe.kdamond import FRAMES, Kdamond, Sampling
from tests.unit.block_process import block_process
from tests.unit.waiting import wait

usable = pytest.mark.skipif(
    os.geteuid() != 0 or frames_problem() is not None,
    reason="DAMON cannot watch page frames here",
)
HOT = 100
HUGE_PAGES = 512
OTHERS = 1 << 14
"""More pages than a processor's TLB has entries. The process accesses them in turn with its hot
pages. Otherwise, on an idle machine, the hot pages could keep TLB entries that are older than
DAMON's observation, and DAMON would not notice the accesses to these pages."""
OTHER = f"other = mmap.mmap(-1, {OTHERS * PAGE_BYTES}); other.madvise(mmap.MADV_NOHUGEPAGE)"
ACCESS = (
    f"block[:{HOT * PAGE_BYTES}:{PAGE_BYTES}] = bytes({HOT});"
    f" other[::{PAGE_BYTES}] = bytes({OTHERS})"
)
WINDOW_S = 2.0
"""So long that the process accesses its pages in the window although other tests need the CPUs."""


@usable
def test_accessed_pages_are_distinguished_from_idle_ones() -> None:
    with block_process() as process:
        pages = AnonymousPages(process.pid)
        first = process.address // PAGE_BYTES
        numbers = first + np.array([0, 3, HOT - 1, HOT + 1, 2 * HOT, 0])
        frames = pages.frames(numbers)
        process.run(OTHER)
        process.run(ACCESS)  # the first accesses take longer than later ones
        assert process.process.stdin is not None
        process.process.stdin.write(f"while True: {ACCESS}\n")
        process.process.stdin.flush()
        try:
            found = accessed_frames(lambda: frames, WINDOW_S)
        finally:
            process.process.kill()
        pages.close()
    assert found.tolist() == [True, True, True, False, False, True]


@usable
def test_one_window_at_a_time() -> None:
    frames = np.array([1])
    first = Kdamond(FRAMES, os.getpid())
    try:
        with pytest.raises(SentinelError) as caught:
            accessed_frames(lambda: frames, 0.01)
        assert caught.value.code == "busy"
    finally:
        first.close()
    accessed_frames(lambda: frames, 0.01)


@usable
def test_without_frames_there_is_nothing_to_watch() -> None:
    assert len(accessed_frames(lambda: np.zeros(0, np.int64), 1.0)) == 0


@usable
def test_the_session_that_has_waited_longest_is_next() -> None:
    first = Kdamond(FRAMES, os.getpid())
    order: list[str] = []

    def session(name: str, since_s: float) -> Background[Mask]:
        def frames() -> Integers:
            order.append(name)
            return np.array([1])

        return Background(name, lambda: accessed_frames(frames, 0.01, wait_s=60, since_s=since_s))

    waiting = [session("new", 20.0)]
    wait(lambda: len(kdamond._in_use._waiting) == 1)
    waiting.append(session("old", 10.0))
    wait(lambda: len(kdamond._in_use._waiting) == 2)
    first.close()
    wait(lambda: all(one.done() for one in waiting))
    assert order == ["old", "new"]


def test_a_kernel_without_damon(tmp_path: Path) -> None:
    with pytest.raises(SentinelError, match="no DAMON"):
        accessed_frames(lambda: np.array([7]), 1.0, tmp_path / "none")


@usable
def test_the_first_frame_of_a_huge_page_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Old kernels report its other frames as never accessed."""
    watched: list[int] = []
    start = Kdamond.start

    def noted(tested: Kdamond, ranges: Iterable[tuple[int, int]], sampling: Sampling) -> None:
        found = list(ranges)
        watched.extend(address // PAGE_BYTES for address, _ in found)
        start(tested, found, sampling)

    monkeypatch.setattr(Kdamond, "start", noted)
    with block_process() as process:
        for statement in (
            "block.madvise(mmap.MADV_DONTNEED)",
            "block.madvise(mmap.MADV_HUGEPAGE)",
            "block[:] = bytes([1]) * len(block)",
            OTHER,
        ):
            process.run(statement)
        first = -(-process.address // (HUGE_PAGES * PAGE_BYTES)) * HUGE_PAGES
        pages = AnonymousPages(process.pid)
        frames = pages.frames(first + np.array([0, 1, 7, HUGE_PAGES - 1, HUGE_PAGES + 3]))
        pages.close()
        if (frames[:4] - frames[0]).tolist() != [0, 1, 7, HUGE_PAGES - 1] or frames[0] % HUGE_PAGES:
            pytest.skip("the kernel gives the process no huge pages")
        assert process.process.stdin is not None
        accessed = (first + 7) * PAGE_BYTES - process.address
        process.process.stdin.write(
            f"while True: block[{accessed}] = 1; other[::{PAGE_BYTES}] = bytes({OTHERS})\n"
        )
        process.process.stdin.flush()
        try:
            found = accessed_frames(lambda: frames[1:], WINDOW_S)
        finally:
            process.process.kill()
    assert watched == sorted([frames[0], frames[4] - 3])
    assert found.tolist() == [True, True, True, False]
