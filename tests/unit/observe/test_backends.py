# SPDX-License-Identifier: Apache-2.0
"""Common parts of the backends: areas, choice of the best, descriptors from a process."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest

from sentineld.base.errors import SentinelError
from sentineld.model.records import ACCESS_WRITE
from sentineld.observe import backends
from sentineld.observe.backend import NO_NODE, Backend, Target, Watch, merge_pages
from sentineld.observe.damon import DAMON
from sentineld.observe.module import MODULE
from sentineld.observe.pagemap_scan import PAGEMAP_SCAN
from sentineld.observe.shim_only import SHIM_ONLY, NoWatch
from sentineld.observe.softdirty import SOFT_DIRTY, written_pages
from sentineld.observe.writefds import WriteFds
from sentineld.shim import writes

PAGE = 4096


def test_equal_adjacent_pages_become_one_area() -> None:
    pages = np.array([3, 4, 5, 6, 9], np.uint64)
    flags = np.array([0, 0, ACCESS_WRITE, ACCESS_WRITE, ACCESS_WRITE], np.uint8)
    areas = merge_pages(pages, flags)
    assert areas["start"].tolist() == [3 * PAGE, 5 * PAGE, 9 * PAGE]
    assert areas["bytes"].tolist() == [2 * PAGE, 2 * PAGE, PAGE]
    assert areas["flags"].tolist() == [0, ACCESS_WRITE, ACCESS_WRITE]
    assert set(areas["node"]) == {NO_NODE}
    assert set(areas["heat"]) == {1.0}


def test_pages_on_different_nodes_are_different_areas() -> None:
    pages = np.array([1, 2], np.uint64)
    areas = merge_pages(pages, np.zeros(2, np.uint8), np.array([0, 1], np.uint8))
    assert areas["node"].tolist() == [0, 1]
    assert len(merge_pages(pages[:0], np.zeros(0, np.uint8))) == 0


def test_soft_dirty_entries_without_a_page_are_not_written_pages() -> None:
    present, swapped, dirty = 1 << 63, 1 << 62, 1 << 55
    entries = [present | dirty, present, swapped | dirty, dirty, 0]
    assert written_pages(np.array(entries, np.uint64)).tolist() == [0, 2]


def test_the_order_is_best_first() -> None:
    expected = (MODULE, DAMON, PAGEMAP_SCAN, SOFT_DIRTY, SHIM_ONLY)
    assert expected == backends.BACKENDS
    assert SHIM_ONLY.probe() is None  # the fallback always works


def test_summaries_of_capabilities() -> None:
    summaries = {one.name: one.capabilities.summary() for one in backends.BACKENDS}
    assert summaries == {
        "module": "reads and writes, by page, per stretch, with nodes",
        "damon": "accesses, without distinguishing reads from writes, by region, per step, "
        "with frequency",
        "pagemap-scan": "writes only, by page, per step",
        "soft-dirty": "writes only, by page, per step",
        "shim": "reads and writes, by tensor, per stretch",
    }


def test_the_next_backend_is_used_if_one_does_not_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[str] = []

    def refusing(name: str) -> Backend:
        def open_(target: Target) -> Watch:
            tried.append(name)
            raise SentinelError("failed", f"no {name} for {target.pid}")

        return replace(MODULE, name=name, open=open_)

    working = replace(MODULE, name="c", open=NoWatch)
    never = replace(MODULE, name="d", open=NoWatch)
    monkeypatch.setattr(backends, "BACKENDS", (refusing("a"), refusing("b"), working, never))
    backend, watch = backends.open_best(Target(os.getpid()))
    assert backend.name == "c"
    assert isinstance(watch, NoWatch)
    assert tried == ["a", "b"]


@pytest.mark.parametrize("backend", [PAGEMAP_SCAN, SOFT_DIRTY])
def test_a_process_without_the_right_descriptors_is_not_watched(backend: Backend) -> None:
    with pytest.raises(SentinelError, match="sent no descriptors"):
        backend.open(Target(1))
    offered = WriteFds(way="something else")
    with pytest.raises(SentinelError, match="sent those for something else"):
        backend.open(Target(1, writes=offered))


def proc_files() -> list[int]:
    return [
        os.open("/proc/self/pagemap", os.O_RDONLY),
        os.open("/proc/self/clear_refs", os.O_WRONLY),
    ]


def is_closed(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return True
    return False


def test_a_process_s_own_files_are_accepted() -> None:
    received = WriteFds.received(os.getpid(), writes.SOFT_DIRTY, fds := proc_files())
    assert (received.way, received.pagemap_fd, received.control_fd) == (writes.SOFT_DIRTY, *fds)
    received.close()
    assert all(is_closed(fd) for fd in fds)


def test_files_of_another_process_are_refused_and_closed() -> None:
    received = WriteFds.received(os.getpid() + 1, writes.SOFT_DIRTY, fds := proc_files())
    assert received.way == ""
    assert all(is_closed(fd) for fd in fds)


@pytest.mark.parametrize("way", [writes.SOFT_DIRTY, writes.SCAN, "clear it all"])
def test_other_files_from_a_process_are_refused(way: str) -> None:
    pagemap_fd, clear_refs_fd = proc_files()
    os.close(clear_refs_fd)
    trap = os.memfd_create("trap")
    received = WriteFds.received(os.getpid(), way, [pagemap_fd, trap])
    assert received.way == ""
    assert is_closed(trap)
