# SPDX-License-Identifier: Apache-2.0
"""The planned arena under random plans: live tensors share no page and keep their data.

A freed slot loses exactly the pages that the plan drops.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentineld.model import protocol
from sentineld.model.protocol import HUGE_BYTES, SlotFlag
from tests.unit.shim.blocks import PAGE, pages, stamp, stamped

THP = Path("/sys/kernel/mm/transparent_hugepage")
ARENA_PAGES = 70  # more than one word of the arena's bitmap of live pages covers
NO_RANGES: list[tuple[int, int]] = []


def layout_fd(
    slots: np.ndarray,
    arena_bytes: int,
    parts: np.ndarray | None = None,
    huge: list[tuple[int, int]] = NO_RANGES,
) -> int:
    ranges = np.array(huge, dtype=protocol.HUGE_DTYPE)
    header = np.zeros(1, dtype=protocol.LAYOUT_DTYPE)
    header["magic"], header["version"] = protocol.LAYOUT_MAGIC, protocol.SHIM_VERSION
    header["slot_count"], header["boundary_count"] = len(slots), 1
    header["layout_id"], header["arena_bytes"], header["heap_node"] = 1, arena_bytes, -1
    end = header.nbytes + slots.nbytes
    header["slots_offset"] = header.nbytes
    header["cuts_offset"] = header["regions_offset"] = header["waits_offset"] = end
    parts = np.zeros(0, protocol.PART_DTYPE) if parts is None else parts
    header["parts_offset"], header["part_count"] = end + 8, len(parts)
    header["huge_offset"], header["huge_count"] = end + 8 + parts.nbytes, len(ranges)
    tail = b"\0" * 8 + parts.tobytes() + ranges.tobytes()
    header["total_bytes"] = end + len(tail)
    descriptor = os.memfd_create("layout")
    os.write(descriptor, header.tobytes() + slots.tobytes() + tail)
    return descriptor


def new_arena(
    harness: ctypes.CDLL,
    slots: np.ndarray,
    arena_bytes: int,
    parts: np.ndarray | None = None,
    huge: list[tuple[int, int]] = NO_RANGES,
) -> tuple[int, str]:
    descriptor = layout_fd(slots, arena_bytes, parts, huge)
    problem = ctypes.c_char_p()
    arena = harness.test_arena_new(descriptor, ctypes.byref(problem))
    os.close(descriptor)
    return arena, (problem.value or b"").decode()


SLOTS = st.lists(
    st.tuples(
        st.integers(0, ARENA_PAGES - 1),
        st.integers(1, ARENA_PAGES),
        st.integers(0, PAGE - 1),
        st.booleans(),
    ),
    min_size=1,
    max_size=12,
)


@given(SLOTS, st.lists(st.integers(0, 100), max_size=80))
def test_any_plan_keeps_live_tensors_apart(
    harness: ctypes.CDLL, plan: list[tuple[int, int, int, bool]], turns: list[int]
) -> None:
    slots = np.zeros(len(plan), dtype=protocol.SLOT_DTYPE)
    for index, (page, count, less, drop) in enumerate(plan):
        size = max(PAGE, min(count, ARENA_PAGES - page) * PAGE - less)
        slots[index] = (size, page * PAGE, SlotFlag.PLANNED | (SlotFlag.DROP if drop else 0), 0)
    arena, problem = new_arena(harness, slots, ARENA_PAGES * PAGE)
    assert not problem
    live: dict[int, tuple[int, int, int]] = {}
    for mark, turn in enumerate(turns, start=1):
        slot = turn % len(plan)
        size, offset = int(slots["bytes"][slot]), int(slots["offset"][slot])
        if slot in live:
            address, _, _ = live.pop(slot)
            assert harness.arena_find(arena, address) == slot
            harness.test_arena_free(arena, slot)
            assert harness.arena_find(arena, address) == -1
        else:
            clash = any(
                offset < int(slots["offset"][o]) + pages(int(slots["bytes"][o])) * PAGE
                and int(slots["offset"][o]) < offset + pages(size) * PAGE
                for o in live
            )
            address = harness.arena_take(arena, slot, size, mark)
            assert (address is None) == clash
            if address is not None:
                if slots["flags"][slot] & SlotFlag.DROP and not clash:
                    assert harness.arena_find(arena, address) == slot
                stamp(address, size, mark)
                live[slot] = (address, size, mark)
        assert all(stamped(*tensor) for tensor in live.values())
    for slot in live:
        harness.test_arena_free(arena, slot)
    harness.arena_delete(arena)


def test_only_slots_with_drop_lose_their_pages(harness: ctypes.CDLL) -> None:
    slots = np.zeros(2, dtype=protocol.SLOT_DTYPE)
    slots["bytes"], slots["offset"] = 2 * PAGE, (0, 2 * PAGE)
    slots["flags"] = (SlotFlag.PLANNED | SlotFlag.DROP, SlotFlag.PLANNED)
    arena, _ = new_arena(harness, slots, 4 * PAGE)
    addresses = [harness.arena_take(arena, slot, 2 * PAGE, 1) for slot in (0, 1)]
    for address in addresses:
        stamp(address, 2 * PAGE, 5)
    for slot in (0, 1):
        harness.test_arena_free(arena, slot)
    assert ctypes.string_at(addresses[0], 8) == b"\0" * 8
    assert stamped(addresses[1], 2 * PAGE, 5)
    harness.arena_delete(arena)


PARTS = [
    # Parts (slot, first page, pages). Slot 0 has pages 1 to 5 and the flag DROP_PARTS, slot 1 has
    # page 6 and lacks this flag.
    ([(0, 1, 1), (0, 3, 2)], ""),
    ([(0, 1, 5)], ""),
    ([(0, 0, 1)], "lies outside its slot"),
    ([(0, 5, 2)], "lies outside its slot"),
    ([(0, 3, 2), (0, 4, 1)], "overlaps another"),
    ([(0, 3, 1), (0, 1, 1)], "overlaps another"),
    ([(1, 6, 1)], "does not drop parts"),
    ([(2, 1, 1)], "slot does not exist"),
]


@pytest.mark.parametrize(("rows", "problem"), PARTS)
def test_parts_outside_slots_with_parts_are_refused(
    harness: ctypes.CDLL, rows: list[tuple[int, int, int]], problem: str
) -> None:
    arena, found = arena_with_parts(harness, rows)
    assert problem in found
    assert bool(problem) == bool(found)
    if not found:
        harness.arena_delete(arena)


def arena_with_parts(harness: ctypes.CDLL, rows: list[tuple[int, int, int]]) -> tuple[int, str]:
    slots = np.zeros(2, dtype=protocol.SLOT_DTYPE)
    slots["bytes"], slots["offset"] = (5 * PAGE - 9, PAGE), (PAGE, 6 * PAGE)
    slots["flags"] = (SlotFlag.PLANNED | SlotFlag.DROP_PARTS, SlotFlag.PLANNED)
    parts = np.zeros(len(rows), protocol.PART_DTYPE)
    for at, (slot, first, count) in enumerate(rows):
        parts[at] = (first * PAGE, count * PAGE, slot, 0)
    return new_arena(harness, slots, 8 * PAGE, parts)


def test_parts_are_dropped_and_the_rest_is_kept(harness: ctypes.CDLL) -> None:
    arena, problem = arena_with_parts(harness, [(0, 1, 1), (0, 3, 2)])
    assert not problem
    address = harness.arena_take(arena, 0, 5 * PAGE - 9, 1)
    ctypes.memset(address, 7, 5 * PAGE - 9)
    harness.test_arena_free(arena, 0)
    assert resident(address, 5) == [False, True, False, False, True]
    harness.arena_delete(arena)


def test_pages_of_slots_with_populate_are_resident_at_birth(harness: ctypes.CDLL) -> None:
    slots = np.zeros(2, dtype=protocol.SLOT_DTYPE)
    slots["bytes"], slots["offset"] = 3 * PAGE - 1, (0, 4 * PAGE)
    slots["flags"] = (SlotFlag.PLANNED | SlotFlag.DROP, SlotFlag.PLANNED)
    slots["flags"][0] |= SlotFlag.POPULATE
    arena, problem = new_arena(harness, slots, 8 * PAGE)
    assert not problem
    for step in (1, 2):
        addresses = [harness.arena_take(arena, slot, 3 * PAGE - 1, step) for slot in (0, 1)]
        for slot in (0, 1):
            harness.arena_populate(arena, slot)
        assert [resident(address, 4) for address in addresses] == [
            [True] * 3 + [False],
            [False] * 4,
        ]
        for slot in (0, 1):
            harness.test_arena_free(arena, slot)
    harness.arena_delete(arena)


def test_a_smaller_tensor_is_populated_as_far_as_it_reaches(harness: ctypes.CDLL) -> None:
    slots = np.zeros(1, dtype=protocol.SLOT_DTYPE)
    slots["bytes"], slots["slack"] = 5 * PAGE, 4
    slots["flags"] = SlotFlag.PLANNED | SlotFlag.POPULATE | SlotFlag.DROP
    arena, problem = new_arena(harness, slots, 8 * PAGE)
    assert not problem
    for step, size in ((1, 5 * PAGE), (2, PAGE + 1)):
        address = harness.arena_take(arena, 0, size, step)
        harness.arena_populate(arena, 0)
        assert sum(resident(address, 5)) == pages(size)
        harness.test_arena_free(arena, 0)
        assert not any(resident(address, 5))
    harness.arena_delete(arena)


def page_sizes(begin: int, end: int) -> str:
    """A letter for each mapping in [begin, end), in order: h for MADV_HUGEPAGE, s for
    MADV_NOHUGEPAGE."""
    found = ""
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        head = line.split(maxsplit=1)[0]
        if "-" in head and not head.endswith(":"):
            low, high = (int(word, 16) for word in head.split("-"))
            inside = begin <= low < high <= end
        elif head == "VmFlags:" and inside:
            flags = line.split()
            assert ("hg" in flags) != ("nh" in flags)
            found += "h" if "hg" in flags else "s"
    return found


@pytest.mark.skipif(not THP.exists(), reason="a kernel without huge pages")
def test_huge_pages_are_allowed_only_in_the_layouts_ranges(harness: ctypes.CDLL) -> None:
    slots = np.zeros(1, dtype=protocol.SLOT_DTYPE)
    slots["bytes"], slots["flags"] = 9 * HUGE_BYTES, SlotFlag.PLANNED | SlotFlag.DROP
    ranges = [(HUGE_BYTES, 2 * HUGE_BYTES), (6 * HUGE_BYTES, HUGE_BYTES)]
    size = 9 * HUGE_BYTES + PAGE
    arena, problem = new_arena(harness, slots, size, huge=ranges)
    assert not problem
    address = harness.arena_take(arena, 0, 9 * HUGE_BYTES, 1)
    assert address % HUGE_BYTES == 0
    assert page_sizes(address, address + size) == "shshs"
    ctypes.memset(address, 7, 9 * HUGE_BYTES)
    assert all(resident(address, size // PAGE)[:-1])
    harness.test_arena_free(arena, 0)
    assert not any(resident(address, size // PAGE))
    harness.arena_delete(arena)


def test_a_deleted_arena_leaves_nothing_mapped(harness: ctypes.CDLL) -> None:
    """The extra address space that is mapped for alignment is unmapped, too."""
    slots = np.zeros(0, dtype=protocol.SLOT_DTYPE)
    mapped = []
    for _ in range(2):
        for _ in range(30):
            arena, _ = new_arena(harness, slots, HUGE_BYTES + PAGE, huge=[(0, HUGE_BYTES)])
            harness.arena_delete(arena)
        mapped.append(int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]))
    assert mapped[1] - mapped[0] < 10 * HUGE_BYTES // PAGE


@pytest.mark.parametrize(
    ("ranges", "what"),
    [
        ([(PAGE + 8, HUGE_BYTES)], "not page-aligned"),
        ([(0, PAGE - 8)], "not page-aligned"),
        ([(0, 0)], "empty"),
        ([(2 * HUGE_BYTES, HUGE_BYTES), (0, HUGE_BYTES)], "not ascending"),
        ([(0, 2 * HUGE_BYTES), (HUGE_BYTES, HUGE_BYTES)], "overlap"),
        ([(0, 4 * HUGE_BYTES)], "outside the arena"),
        ([(4 * HUGE_BYTES, HUGE_BYTES)], "outside the arena"),
        ([(2**64 - HUGE_BYTES, HUGE_BYTES)], "outside the arena"),
        ([(HUGE_BYTES, 2**64 - HUGE_BYTES)], "outside the arena"),
    ],
)
def test_invalid_huge_ranges_are_refused(
    harness: ctypes.CDLL, ranges: list[tuple[int, int]], what: str
) -> None:
    slots = np.zeros(0, dtype=protocol.SLOT_DTYPE)
    arena, problem = new_arena(harness, slots, 3 * HUGE_BYTES + PAGE, huge=ranges)
    assert arena is None
    assert what in problem


def test_huge_ranges_beyond_the_files_end_are_refused(harness: ctypes.CDLL) -> None:
    slots = np.zeros(0, dtype=protocol.SLOT_DTYPE)
    descriptor = layout_fd(slots, 3 * HUGE_BYTES, huge=[(0, HUGE_BYTES)])
    os.truncate(descriptor, os.fstat(descriptor).st_size - 1)
    fields = protocol.LAYOUT_DTYPE.fields
    assert fields is not None
    total = np.uint64(os.fstat(descriptor).st_size)
    os.pwrite(descriptor, total.tobytes(), fields["total_bytes"][1])
    problem = ctypes.c_char_p()
    assert harness.test_arena_new(descriptor, ctypes.byref(problem)) is None
    assert problem.value == b"a table of the layout lies outside its file or is not aligned"
    os.close(descriptor)


def resident(address: int, count: int) -> list[bool]:
    """Which of the `count` pages from address on are resident, according to /proc/self/pagemap."""
    with open("/proc/self/pagemap", "rb") as file:
        file.seek(address // PAGE * 8)
        entries = np.frombuffer(file.read(8 * count), np.uint64)
    found: list[bool] = (entries >> np.uint64(63) == 1).tolist()
    return found


@given(st.binary(max_size=400))
def test_random_bytes_are_never_a_layout(harness: ctypes.CDLL, garbage: bytes) -> None:
    descriptor = os.memfd_create("layout")
    os.write(descriptor, garbage)
    problem = ctypes.c_char_p()
    assert harness.test_arena_new(descriptor, ctypes.byref(problem)) is None
    assert problem.value
    os.close(descriptor)


@given(st.integers(0, protocol.LAYOUT_DTYPE.itemsize - 1), st.integers(0, 255))
def test_a_changed_header_byte_never_crashes(
    harness: ctypes.CDLL, position: int, value: int
) -> None:
    slots = np.zeros(3, dtype=protocol.SLOT_DTYPE)
    slots["bytes"], slots["offset"] = PAGE, np.arange(3) * PAGE
    slots["flags"] = SlotFlag.PLANNED
    descriptor = layout_fd(slots, 3 * PAGE)
    os.pwrite(descriptor, bytes([value]), position)
    problem = ctypes.c_char_p()
    arena = harness.test_arena_new(descriptor, ctypes.byref(problem))
    assert (arena is None) == bool(problem.value)
    if arena is not None:
        harness.arena_delete(arena)
    os.close(descriptor)
