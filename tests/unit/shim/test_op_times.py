# SPDX-License-Identifier: Apache-2.0
"""The ring's records, and the map from the profiler's clock to the ring's clock."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentineld.model import protocol
from sentineld.model.protocol import Alloc, Event
from sentineld.shim.op_times import TimeMap, ring_head, ring_records, tensor_ranges
from tests.unit.segment import RECORDS, Writer

PAGE = 4096
Row = tuple[int, int, int, int, int]
"""(time_ns, address, bytes, event, detail)"""


class Segment:
    """Stands in for Native. The test writes the control segment."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    def control_bytes(self, start: int, count: int) -> bytes:
        return os.pread(self._writer.fd, count, start)


@pytest.fixture
def writer() -> Iterator[Writer]:
    made = Writer()
    yield made
    os.close(made.fd)


def records(*rows: Row) -> np.ndarray:
    made = np.zeros(len(rows), protocol.RECORD_DTYPE)
    for name, column in zip(
        ("time_ns", "address", "bytes", "event", "detail"), zip(*rows, strict=True), strict=False
    ):
        made[name] = column
    return made


def alloc(time_ns: int, address: int, detail: int = Alloc.STEP) -> Row:
    return time_ns, address, PAGE, Event.ALLOC, detail


def free(time_ns: int, address: int) -> Row:
    return time_ns, address, PAGE, Event.FREE, 0


@given(st.lists(st.integers(0, RECORDS), min_size=1, max_size=6))
def test_the_records_since_a_moment_are_copied_around_the_rings_end(batches: list[int]) -> None:
    writer = Writer()
    native = Segment(writer)
    for count in batches:
        first = ring_head(native)  # type: ignore[arg-type]
        writer.write(count)
        found = ring_records(native, first)  # type: ignore[arg-type]
        assert found["time_ns"].tolist() == list(range(first, first + count))
    os.close(writer.fd)


def test_records_that_are_overwritten_are_not_returned(writer: Writer) -> None:
    writer.write(RECORDS + 1)
    native = Segment(writer)
    assert len(ring_records(native, 0)) == 0  # type: ignore[arg-type]
    assert len(ring_records(native, 1)) == RECORDS  # type: ignore[arg-type]


def test_tensors_are_in_the_heap_and_in_a_live_arena(writer: Writer) -> None:
    native = Segment(writer)
    writer.header["heap_base"], writer.header["heap_used"] = 1 << 40, 8 * PAGE
    assert tensor_ranges(native) == [(1 << 40, 8 * PAGE)]  # type: ignore[arg-type]
    writer.header["arena_base"], writer.header["arena_bytes"] = 1 << 41, 5 * PAGE
    assert tensor_ranges(native)[1] == (1 << 41, 5 * PAGE)  # type: ignore[arg-type]


def test_times_of_allocations_and_frees_in_both_are_equal() -> None:
    ring = records(alloc(1000, PAGE), alloc(1300, 2 * PAGE), free(2000, PAGE))
    memory = [(50_000, PAGE, PAGE), (50_200, 2 * PAGE, PAGE), (51_000, PAGE, -PAGE)]
    times = TimeMap(ring, memory)
    wanted = [900, 1000, 1150, 1300, 1650, 2000, 2100]
    asked = np.array([49_900, 50_000, 50_100, 50_200, 50_600, 51_000, 51_100])
    assert times.monotonic(asked).tolist() == wanted
    assert len(times.unreported_allocations()) == 0


@given(
    st.lists(st.tuples(st.integers(1, 10**6), st.integers(1, 10**6)), min_size=2, max_size=20),
    st.lists(st.integers(0, 3 * 10**7), max_size=20),
)
def test_no_time_moves_across_an_allocation(gaps: list[tuple[int, int]], asked: list[int]) -> None:
    ours, theirs = np.cumsum(np.array(gaps), axis=0).T
    ring = records(*(alloc(int(time), PAGE * (n + 1)) for n, time in enumerate(ours)))
    memory = [(int(time), PAGE * (n + 1), PAGE) for n, time in enumerate(theirs)]
    mapped = TimeMap(ring, memory).monotonic(np.array(sorted(asked), np.int64) + int(theirs[0]))
    assert (np.diff(mapped.astype(np.int64)) >= 0).all()
    for when, found in zip(sorted(asked), mapped.tolist(), strict=True):
        for pin, at in zip(theirs.tolist(), ours.tolist(), strict=True):
            if when + int(theirs[0]) <= pin:
                assert found <= at
            else:
                assert found >= at - 1  # rounded down to a nanosecond


def test_allocations_that_the_profiler_did_not_see_are_unreported() -> None:
    ring = records(
        alloc(1000, PAGE),
        alloc(1100, 2 * PAGE),
        free(1200, 2 * PAGE),
        alloc(1300, 3 * PAGE, Alloc.LIVE),  # not allocated in this step
        # The profiler reported only one of these two allocations, so their address gives no pair of
        # times (no pin, see op_times.py).
        alloc(1400, 4 * PAGE),
        alloc(1500, 4 * PAGE),
    )
    times = TimeMap(ring, [(50_000, PAGE, PAGE), (50_400, 4 * PAGE, PAGE)])
    assert times.unreported_allocations()["address"].tolist() == [2 * PAGE]
    assert times.monotonic(np.array([50_400])).tolist() == [1400]


def test_small_allocations_are_not_compared() -> None:
    times = TimeMap(records(alloc(1000, PAGE)), [(50_000, PAGE, 100)])
    assert times.unreported_allocations()["address"].tolist() == [PAGE]


def test_without_a_pin_both_clocks_of_now_are_used() -> None:
    begin_ns = time.monotonic_ns()
    times = TimeMap(np.zeros(0, protocol.RECORD_DTYPE), [])
    found = int(times.monotonic(np.array([time.time_ns()]))[0])
    # Time can pass between two readings of the clocks.
    now_ns = time.monotonic_ns()
    assert abs(found - now_ns) < 2 * (now_ns - begin_ns) + 10**9
