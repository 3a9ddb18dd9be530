# SPDX-License-Identifier: Apache-2.0
"""The daemon allocates little memory, whatever a process writes into its control words and ring."""

from __future__ import annotations

import contextlib
import tracemalloc
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sentineld.base.errors import SentinelError
from sentineld.model.protocol import Alloc, Event, Mode
from sentineld.model.records import RECORD_DTYPE
from sentineld.profile import steps as steps_module
from sentineld.profile.steps import StepCutter
from sentineld.session.intake import claims
from sentineld.session.intake.claims import arena_range, heap_range, require_arena
from sentineld.session.intake.step_feed import StepFeed
from sentineld.session.live.divergence import Patience
from sentineld.session.live.managed import Managed
from sentineld.session.live.shapes import Planned, Shape
from tests.unit.links import Linked
from tests.unit.plan.toys import HEAP, PAGE, toy_plan, toy_profile, two_tiers
from tests.unit.toyprocess import ToyPages

MACHINE_BYTES = 1 << 30
MIB = 1 << 20
ARENA = toy_plan().layout.arena_bytes


@pytest.fixture(autouse=True)
def small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "tensor_bytes_max", lambda: MACHINE_BYTES)


def allocated(run: Callable[[], object]) -> int:
    """The peak of the bytes that a call allocates; the call may raise SentinelError. A second call
    is measured, because the first one also imports modules."""
    with contextlib.suppress(SentinelError):
        run()
    tracemalloc.start()
    try:
        with contextlib.suppress(SentinelError):
            run()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return peak


words = st.one_of(
    st.sampled_from([0, 1, PAGE, ARENA, MACHINE_BYTES, HEAP, 1 << 38, 1 << 47, 1 << 63]),
    st.integers(0, (1 << 64) - 1),
    st.integers(0, 1 << 40).map(lambda pages: pages * PAGE % (1 << 64)),
)


@given(heap=st.tuples(words, words, words), arena=st.tuples(words, words), position=words)
@example(heap=(HEAP, MACHINE_BYTES, MACHINE_BYTES), arena=(0, 0), position=0)
def test_control_words_do_not_make_the_daemon_allocate(
    heap: tuple[int, int, int], arena: tuple[int, int], position: int
) -> None:
    pages = ToyPages()

    def manage() -> None:
        linked = Linked(
            heap_base=heap[0],
            heap_bytes=heap[1],
            heap_used=heap[2],
            arena_base=arena[0],
            arena_bytes=arena[1],
            position=position,
            mode=Mode.REPLAY,
        )
        try:
            planned = Planned(Shape(1, ""), toy_profile(), toy_profile(), toy_plan(), 7 * PAGE, 0.0)
            managed = Managed(
                linked.link, planned, two_tiers(1e12), pages.memory, lambda _: None, Patience()
            )
            managed.enter()
            managed.mover.begin(position)
            managed.mover.work()
            managed.fast_bytes()
            managed.by_tier()
            managed.stop()
        finally:
            linked.close()

    # The limit: 8 bytes for each page of the machine, and 8 MiB for querying the nodes of pages.
    assert allocated(manage) < 8 * MACHINE_BYTES // PAGE + 8 * MIB


def test_a_real_process_s_ranges_are_used() -> None:
    linked = Linked(heap_base=HEAP, heap_used=6 * PAGE, arena_base=PAGE, arena_bytes=ARENA)
    segment = linked.link.segment
    assert heap_range(segment, segment.words()) == (HEAP, 6 * PAGE)
    assert arena_range(segment.words(), ARENA) == (PAGE, ARENA)
    linked.set(arena_bytes=0)
    assert arena_range(segment.words(), ARENA) == (0, 0)
    linked.close()


@pytest.mark.parametrize(
    "lie",
    [
        {"arena_bytes": ARENA + PAGE},
        {"arena_bytes": 1 << 38},
        {"arena_base": 100},
        {"arena_base": (1 << 47) - PAGE},
        {"heap_used": (1 << 32) + PAGE},
        {"heap_used": 2 * MACHINE_BYTES},
        {"heap_used": 100},
    ],
)
def test_a_lie_ends_the_management_with_its_value(lie: dict[str, int]) -> None:
    linked = Linked(heap_used=PAGE, arena_base=PAGE, arena_bytes=ARENA)
    linked.set(**lie)
    segment = linked.link.segment
    words = segment.words()
    with pytest.raises(SentinelError, match="impossible sizes"):
        _ = heap_range(segment, words), arena_range(words, ARENA)
    linked.close()


def test_no_layout_is_larger_than_the_machine() -> None:
    require_arena(MACHINE_BYTES)
    with pytest.raises(SentinelError, match="need an arena"):
        require_arena(MACHINE_BYTES + PAGE)


@pytest.fixture
def linked() -> Iterator[Linked]:
    made = Linked()
    yield made
    made.close()


def alloc(address: int, size: int, detail: int = Alloc.STEP) -> tuple[int, ...]:
    return (1, address, size, 0, 0, Event.ALLOC, detail)


STEP = (1, 0, 7, 0, 0, Event.STEP, 0)


@pytest.mark.parametrize("detail", [Alloc.STEP, Alloc.LIVE])
def test_a_tensor_larger_than_the_machine_is_refused(linked: Linked, detail: Alloc) -> None:
    feed = StepFeed(linked.link.segment)
    feed.begin()
    linked.writer.put(np.array([STEP, alloc(PAGE, MACHINE_BYTES), STEP], RECORD_DTYPE))
    assert len(list(feed.steps())) == 1
    linked.writer.put(np.array([alloc(PAGE, MACHINE_BYTES + 1, detail), STEP], RECORD_DTYPE))
    with pytest.raises(SentinelError, match="one of its tensors"):
        list(feed.steps())


def test_short_steps_with_many_live_tensors_take_the_memory_of_one() -> None:
    live = 5_000
    rows = [STEP] + [alloc(PAGE * (1 + n), PAGE, Alloc.LIVE) for n in range(live)] + [STEP] * 40
    records, cutter = np.array(rows, RECORD_DTYPE), StepCutter()

    def take() -> None:
        for step in cutter.steps(records):
            assert len(step.live) == live

    assert allocated(take) < 4 * 300 * live


def test_a_call_s_work_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps_module, "WORK_MAX", 1000)
    rows = [STEP] + [alloc(PAGE * (1 + n), PAGE, Alloc.LIVE) for n in range(100)] + [STEP] * 100
    cutter = StepCutter()
    assert 5 < len(cutter.feed(np.array(rows, RECORD_DTYPE))) < 10
    # The records that the call above did not process count as lost. The next whole step begins
    # after them.
    assert cutter.feed(np.array([STEP], RECORD_DTYPE)) == []
    assert len(cutter.feed(np.array([STEP], RECORD_DTYPE))) == 1
