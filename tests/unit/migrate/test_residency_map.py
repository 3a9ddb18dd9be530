# SPDX-License-Identifier: Apache-2.0
"""Residency maps, compared with arrays written by hand and with this process's own memory."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from typing import cast

import numpy as np

from sentineld.migrate.process_memory import KernelMemory, Memory
from sentineld.migrate.residency_map import ABSENT, PageMaps, ResidencyMap
from sentineld.migrate.syscalls import Addresses, Status
from sentineld.model.plan import MOVE_DTYPE, Space
from sentineld.model.tiers import Tier, Tiers
from sentineld.plan.residency import ABSENT as ABSENT_TIER

PAGE = mmap.PAGESIZE
TIERS = Tiers((Tier((0, 2), 1 << 30), Tier((1,), 1 << 30)), 1e8, "config")


def test_births_fill_absent_pages_only_and_drops_empty_them() -> None:
    residency = ResidencyMap(1 << 30, 8 * PAGE)
    assert residency.births(slice(2, 3), 1).tolist() == [2]
    assert residency.births(slice(0, 4), 0).tolist() == [0, 1, 3]
    assert residency.nodes.tolist() == [0, 0, 1, 0, -1, -1, -1, -1]
    assert (residency.tier_pages, residency.fast_pages) == ([3, 1], 3)
    residency.drops(slice(1, 3))
    assert residency.nodes.tolist() == [0, -1, -1, 0, -1, -1, -1, -1]
    assert residency.tier_pages == [2, 0]


def test_ranges_are_clipped_to_the_map() -> None:
    residency = ResidencyMap(1 << 30, 4 * PAGE)
    residency.births(residency.span(2 * PAGE, 100 * PAGE), 0)
    residency.births(residency.span(50 * PAGE, PAGE), 0)
    assert residency.nodes.tolist() == [-1, -1, 0, 0]


def test_apply_takes_nodes_and_absence_and_ignores_other_errors() -> None:
    residency = ResidencyMap(1 << 30, 5 * PAGE)
    residency.births(slice(0, 5), 0)
    status = np.array([1, -errno.ENOENT, -errno.EFAULT, -errno.EBUSY, 0], np.int32)
    assert residency.apply(np.arange(5), status) == 3
    assert residency.nodes.tolist() == [1, -1, -1, 0, 0]
    assert residency.tier_pages == [2, 1]


def test_a_map_changes_when_a_reading_replaces_it_and_not_before() -> None:
    class AllSlow:
        def query_pages(self, pages: Addresses) -> Status:
            return np.where(pages == pages[0], -errno.EBUSY, 1).astype(np.int32)

    residency = ResidencyMap(1 << 30, 4 * PAGE)
    residency.births(slice(0, 2), 0)
    found = residency.read(cast(Memory, AllSlow()))
    assert (residency.nodes.tolist(), residency.fast_pages) == ([0, 0, ABSENT, ABSENT], 2)
    assert residency.replace(found) == 3
    assert (residency.nodes.tolist(), residency.fast_pages) == ([0, 1, 1, 1], 1)
    assert residency.read(cast(Memory, AllSlow())) == []


def test_sums_and_pages_to_move_by_tier() -> None:
    spaces = PageMaps(TIERS, {Space.ARENA: (1 << 30, 4 * PAGE), Space.HEAP: (1 << 31, 4 * PAGE)})
    present = np.arange(3)
    spaces.maps[Space.ARENA].apply(present, np.array([0, 2, 1], np.int32))
    spaces.maps[Space.HEAP].apply(present, np.array([1, 1, 3], np.int32))  # node 3: in no tier
    assert [one.tier_pages for one in spaces.maps.values()] == [[2, 1], [0, 2]]
    assert spaces.pages_by_tier() == [2, 3]
    tiers = {space: spaces.tiers_of(one.nodes).tolist() for space, one in spaces.maps.items()}
    assert tiers == {
        Space.ARENA: [0, 0, 1, ABSENT_TIER],
        Space.HEAP: [1, 1, ABSENT_TIER, ABSENT_TIER],
    }
    assert spaces.pages_to_move(Space.ARENA, PAGE, 3 * PAGE, 0).tolist() == [2]
    assert spaces.pages_to_move(Space.HEAP, 0, 4 * PAGE, 0).tolist() == [0, 1]


def test_ranges_with_pages_to_move_are_found() -> None:
    random, spaces = np.random.default_rng(1), {Space.ARENA: (1 << 30, 40 * PAGE)}
    maps = PageMaps(TIERS, {**spaces, Space.HEAP: (1 << 31, 9 * PAGE)})
    for one in maps.maps.values():
        one.nodes[:] = random.choice([0, 0, 0, 1, 3, ABSENT], len(one.nodes))
    table = np.zeros(300, MOVE_DTYPE)
    table["space"], table["tier"] = random.integers(0, 2, (2, 300))
    table["offset"] = random.integers(0, 45, 300) * PAGE  # some begin or end beyond the map
    table["bytes"] = random.integers(0, 4, 300) * PAGE
    expected = [
        len(maps.pages_to_move(Space(row["space"]), int(row["offset"]), int(row["bytes"]), tier))
        > 0
        for row, tier in zip(table, table["tier"].tolist(), strict=True)
    ]
    assert maps.misplaced(table).tolist() == expected
    assert 30 < sum(expected) < 270


def test_refresh_reads_this_processs_own_pages() -> None:
    with mmap.mmap(-1, 8 * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        held = ctypes.c_char.from_buffer(memory)
        residency = ResidencyMap(ctypes.addressof(held), 8 * PAGE)
        del held
        memory[3 * PAGE] = 1
        memory[5 * PAGE] = 1
        own = KernelMemory(os.getpid(), TIERS)
        assert residency.refresh(own) == 2
        assert np.flatnonzero(residency.nodes != ABSENT).tolist() == [3, 5]
        memory.madvise(mmap.MADV_DONTNEED, 3 * PAGE, PAGE)
        assert residency.refresh(own) == 1
        assert np.flatnonzero(residency.nodes != ABSENT).tolist() == [5]
