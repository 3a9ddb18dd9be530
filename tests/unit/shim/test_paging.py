# SPDX-License-Identifier: Apache-2.0
"""The shim's tensors under the pager: the budget, planned moves, and invalid requests for moves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.shim.paged import pager_problem
from tests.unit.shim.shimmed import shimmed

pytestmark = pytest.mark.skipif(pager_problem() is not None, reason=pager_problem() or "")

PAGED = """
import os
import numpy as np
from sentineld.migrate.paged import PagedMemory
from sentineld.migrate.paging_file import open_paging_file
from sentineld.model import protocol
from sentineld.model.plan import SLOT_DTYPE, Layout, Space
from sentineld.model.tiers import Tier, Tiers
from sentineld.observe.residency_segment import ResidencySegment
from sentineld.plan.layout_wire import pack_layout
from sentineld.shim.native import PagingSettings

PAGE, MIB = 4096, 1 << 20
BUDGET = 2048
TENSORS = 40
TIERS = Tiers((Tier((0,), 1 << 30), Tier((1,), 1 << 40)), 1e9, "paged", paged=True)
wake = os.eventfd(0, os.EFD_NONBLOCK)

def start(folder, size_bytes=64 * MIB):
    file = open_paging_file(folder, size_bytes)
    return native.paging(PagingSettings(file, size_bytes, size_bytes, os.dup(wake)))

def budget(pages):
    slots, cuts, waits = np.zeros(0, SLOT_DTYPE), np.zeros(0, np.uint32), np.full(1, -1, np.int32)
    layout = Layout(slots, cuts, (), waits, 0)
    fd = os.memfd_create("layout")
    none = np.zeros(0, protocol.ACCESS_DTYPE)
    os.write(fd, pack_layout(layout, 7, TIERS, len(layout.waits), none, pages))
    problem = native.layout(fd)
    os.close(fd)
    assert not problem, problem
    return ResidencySegment(native.residency_fd)

def wait(done):
    deadline_s = time.monotonic() + 600
    while not done():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)

def counts(segment):
    native.step_begin()  # publishes the counters
    return segment.paging.counts()

def made(number):
    return torch.arange(MIB // 8, dtype=torch.int64) + (number << 32)

def right():
    return all(torch.equal(tensor, made(number)) for number, tensor in enumerate(tensors))

tensors = [made(number) for number in range(TENSORS)]
"""
"""The beginning of a script: makes 40 tensors of 1 MiB each; the budget is 8 MiB."""


def paged(script: str, folder: Path, **environment: str) -> Any:
    return shimmed(f"{PAGED}folder = {str(folder)!r}\n{script}", **environment)


def test_tensors_are_kept_within_the_budget(tmp_path: Path) -> None:
    found = paged(
        """
assert not start(folder)
segment = budget(BUDGET)
wait(lambda: counts(segment).frames <= BUDGET)
found = [right(), right()]
now = counts(segment)
print(json.dumps({
    "right": found,
    "frames": now.frames <= BUDGET == now.budget_pages,
    "faults": now.faults > 0,
    "written": now.bytes_written >= (TENSORS - 8) * MIB,
    "clean": now.clean_pages > 0,
    "overruns": now.overruns,
    "resident": int((segment.maps[Space.HEAP] == 1).sum()) <= BUDGET,
}))
""",
        tmp_path,
    )
    assert found == {
        "right": [True, True],
        "frames": True,
        "faults": True,
        "written": True,
        "clean": True,
        "overruns": 0,
        "resident": True,
    }


def test_planned_moves_are_carried_out(tmp_path: Path) -> None:
    found = paged(
        """
assert not start(folder)
segment = budget(BUDGET)
wait(lambda: counts(segment).frames <= BUDGET)
heap = (native.word(0x20), native.word(0x28))
memory = PagedMemory(segment, segment.paging, {Space.HEAP: heap}, TIERS, wake)
addresses = np.arange(256, dtype=np.uint64) * PAGE + tensors[0].data_ptr()
# Two tensors leave, so that there is room.
for node, number in ((1, TENSORS - 1), (1, TENSORS - 2), (0, 0)):
    addresses = np.arange(256, dtype=np.uint64) * PAGE + tensors[number].data_ptr()
    status = memory.move_pages(addresses, node).status
    assert (status == node).all(), status
    wait(lambda: (memory.query_pages(addresses) == node).all())
faults = counts(segment).faults
assert torch.equal(tensors[0], made(0))
print(json.dumps([counts(segment).faults - faults, right()]))
""",
        tmp_path,
    )
    assert found == [0, True]


def test_the_queues_may_contain_anything(tmp_path: Path) -> None:
    found = paged(
        """
assert not start(folder)
segment = budget(BUDGET)
words = segment.paging._words
random = np.random.default_rng(1)
for round in range(300):
    queue = words["evict" if round % 2 else "fetch"]
    count = int(random.integers(1, 20))
    head = int(queue["head"][0])
    for at in range(count):
        page = int(random.choice([random.integers(0, 20000), random.integers(0, 1 << 62)]))
        pages = int(random.choice([random.integers(0, 600), random.integers(0, 1 << 32)]))
        queue["ranges"][0, (head + at) % protocol.QUEUE_RANGES] = (page, pages, at % 4)
    heads = [head + count, head + 5000, head] if round > 250 else [head + count]
    queue["head"][0] = random.choice(heads)
    segment.maps[Space.HEAP][int(random.integers(0, 10000))] = random.integers(0, 256)
    os.eventfd_write(wake, 1)
    if round % 50 == 0:
        assert right()
now = counts(segment)
print(json.dumps([right(), now.overruns, now.frames <= BUDGET]))
""",
        tmp_path,
    )
    assert found == [True, 0, True]


def test_the_file_can_grow_and_the_budget_can_change(tmp_path: Path) -> None:
    found = paged(
        """
assert not start(folder, 16 * MIB)
segment = budget(BUDGET)
wait(lambda: counts(segment).write_error)
full = right()
assert not native.paging(PagingSettings(-1, 64 * MIB, 64 * MIB, os.dup(wake)))
segment = budget(BUDGET)
wait(lambda: right() and counts(segment).frames <= BUDGET)
grown = counts(segment)
segment = budget(4 * BUDGET)
print(json.dumps([full, grown.write_error, grown.file_bytes >> 20, right(),
                  counts(segment).budget_pages]))
""",
        tmp_path,
    )
    assert found == [True, 0, 64, True, 8192]


def test_a_file_that_is_nearly_full_grows(tmp_path: Path) -> None:
    found = paged(
        """
file = open_paging_file(folder, 16 * MIB)
assert not native.paging(PagingSettings(file, 16 * MIB, 160 * MIB, os.dup(wake), BUDGET))
before = right()
now = counts(budget(BUDGET))
print(json.dumps([before, right(), now.write_error, 80 <= now.file_bytes >> 20 <= 160,
                  now.budget_pages == BUDGET]))
""",
        tmp_path,
    )
    assert found == [True, True, 0, True, True]


def test_times_of_records_exclude_stalls_on_request(tmp_path: Path) -> None:
    found = paged(
        """
def in_file(tensor):
    with open("/proc/self/pagemap", "rb") as pagemap:
        pagemap.seek(tensor.data_ptr() // PAGE * 8)
        return not pagemap.read(8)[7] >> 7  # the bit of pages that are in memory

def step_s(flags, reads):
    # The time of a step that sleeps and then, if `reads` is set, reads a tensor from the file.
    control.set_flags(Flag.RECORD | flags)
    control.drain()
    native.step_begin()
    time.sleep(1)
    if reads:
        # Chosen after the sleep: reads and writes that were in flight have ended.
        number = next(number for number in range(TENSORS) if in_file(tensors[number]))
        # This read writes no ring record, so the sleep and the wait for the page lie between the
        # same two records. With NO_STALLS, the times of records exclude both.
        assert int(tensors[number][5]) == 5 + (number << 32)
    native.step_end()
    control.set_flags(0)
    native.step_begin()
    records = control.drain()
    begin = records[records["event"] == Event.BOUNDARY][0]
    end = records[records["event"] == Event.STEP][-1]
    return (int(end["time_ns"]) - int(begin["time_ns"])) / 1e9

control = segment
assert not start(folder)
wait(lambda: counts(budget(BUDGET)).frames <= BUDGET)
assert right()
quiet = Flag.NO_STALLS
print(json.dumps([step_s(flags, reads) for flags, reads in (
    (0, True), (quiet, False), (quiet, True), (quiet, False), (0, True))]))
""",
        tmp_path,
    )
    assert [step_s >= 1 for step_s in found] == [True, True, False, True, True]


def test_problems_are_told(tmp_path: Path) -> None:
    found = paged(
        """
null = os.open("/dev/null", 2)
wrong = ((-1, MIB, MIB, -1), (null, 1 << 60, 0, -1))
found = [native.paging(PagingSettings(*some)) for some in wrong]
assert not start(folder)
found.append(native.paging(PagingSettings(-1, MIB, 1 << 60, -1)))
print(json.dumps([*found, right()]))
""",
        tmp_path,
    )
    assert found == [
        "the paging file is missing",
        "the paging file's size is out of range",
        "the paging file's size is out of range",
        True,
    ]


def test_the_layouts_moves_are_carried_out_without_the_daemon(tmp_path: Path) -> None:
    found = paged(
        """
assert not start(folder)
segment = budget(BUDGET)
wait(lambda: counts(segment).frames <= BUDGET)
heap = native.word(0x20)
first = [(tensor.data_ptr() - heap) // PAGE for tensor in tensors]
# At boundary 0 the last three tensors are evicted; at boundary 1 the first two are fetched.
moves = np.zeros(5, protocol.PAGER_MOVE_DTYPE)
for row, number in enumerate((TENSORS - 1, TENSORS - 2, TENSORS - 3, 0, 1)):
    evict = row < 3
    moves[row] = (first[number], 256, 0 if evict else 1, 1, 2, 3 if evict else 2, 0)
slots, cuts, waits = np.zeros(0, SLOT_DTYPE), np.zeros(0, np.uint32), np.full(2, -1, np.int32)
fd = os.memfd_create("layout")
none = np.zeros(0, protocol.ACCESS_DTYPE)
os.write(fd, pack_layout(Layout(slots, cuts, (), waits, 0), 8, TIERS, 2, none, BUDGET, moves))
assert not native.layout(fd)
segment = ResidencySegment(native.residency_fd)
states = lambda number: segment.maps[Space.HEAP][first[number]:first[number] + 256]
native.step_begin()
wait(lambda: all((states(TENSORS - n) == 2).all() for n in (1, 2, 3)))
native.forward(1)
wait(lambda: all((states(number) == 1).all() for number in (0, 1)))
before = counts(segment)
assert torch.equal(tensors[0], made(0)) and torch.equal(tensors[1], made(1))
after = counts(segment)
print(json.dumps([after.faults - before.faults, before.evicted_pages <= 768,
                  before.fetched_pages, before.late_moves, right()]))
""",
        tmp_path,
    )
    faults, evicted, fetched, late, right = found
    assert (faults, evicted, late, right) == (0, True, 0, True)
    assert fetched >= 256
