# SPDX-License-Identifier: Apache-2.0
"""The thread that serves faults wakes the threads that wait until the pager is settled. It serves
an access once, even if signals interrupt the wait."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.shim.paged import PATIENCE_S, Paged, backing_file
from tests.unit.shim.pager.conftest import FILE_PAGES, PAGES, Link
from tests.unit.shim.pager.holding import Reader, hold

in_kernel_or_not = pytest.mark.parametrize("in_kernel", [False, True])


def test_a_fault_on_a_page_that_has_arrived_ends_the_wait(link: Link, tmp_path: Path) -> None:
    """A fork waits until the pager is settled, and holds locks meanwhile. So if the end of the last
    fault did not wake the thread that forks, the training would hang."""
    library = link("two_faults.c", "workers_add pthread_cond_wait")
    file = backing_file(tmp_path, FILE_PAGES)
    paged = Paged(library, file, FILE_PAGES, PAGES, PAGES)
    paged.fill_and_evict(32)
    assert paged.ask("test_settles_between_faults")
    assert paged.holds(0, 32, 1)
    paged.stop()
    os.close(file)


@pytest.fixture
def _signals_are_handled() -> Iterator[None]:
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    yield
    signal.signal(signal.SIGUSR1, before)


def interrupt(reader: Reader) -> None:
    """Interrupt the thread's wait a few times. After each signal, the kernel raises the thread's
    fault again or, in a system call, again and again."""
    for _ in range(10):
        assert reader.thread.ident is not None
        signal.pthread_kill(reader.thread.ident, signal.SIGUSR1)
        time.sleep(0.01)


@in_kernel_or_not
@pytest.mark.usefixtures("_signals_are_handled")
def test_an_interrupted_wait_for_a_read_counts_once(
    held: ctypes.CDLL, tmp_path: Path, in_kernel: bool
) -> None:
    file = backing_file(tmp_path, FILE_PAGES)
    paged = Paged(held, file, FILE_PAGES, PAGES, PAGES)
    paged.fill_and_evict(64)
    with hold(held, "reads"):
        assert paged.fetch(0, 64) == 64
        reader = Reader(paged, 0, in_kernel)
        interrupt(reader)
        assert paged.counts().faults == 1
    assert reader.ends(PATIENCE_S)
    assert paged.holds(0, 64, 1)
    assert paged.counts().faults == 1
    paged.stop()
    os.close(file)


@in_kernel_or_not
@pytest.mark.parametrize("page", [0, 200])
@pytest.mark.usefixtures("_signals_are_handled")
def test_an_interrupted_wait_for_a_frame_counts_once(
    held: ctypes.CDLL, tmp_path: Path, in_kernel: bool, page: int
) -> None:
    """Page 0 is in the file, and page 200 is absent. All frames belong to pages that are being
    evicted."""
    file = backing_file(tmp_path, FILE_PAGES)
    paged = Paged(held, file, FILE_PAGES, PAGES, 64)
    paged.fill_and_evict(64)
    paged.born(64, 64)
    paged.fill(64, 64, 1)
    with hold(held, "checksums"):
        assert paged.evict(64, 64) == 64
        reader = Reader(paged, page, in_kernel)
        interrupt(reader)
        counts = paged.counts()
        assert counts.faults + counts.births_by_fault == 1
        assert counts.waits == counts.births_by_fault
    assert reader.ends(PATIENCE_S)
    assert paged.holds(0, 128, 1)
    paged.stop()
    os.close(file)
