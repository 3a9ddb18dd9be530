# SPDX-License-Identifier: Apache-2.0
"""The mover's thread: the positions it publishes, the bytes it moves and charges, and how it ends.

The processes' pages are absent, or their memory is fake. tests/vm/test_migrate.py tests real moves.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from sentineld.model.plan import MOVE_DTYPE, Space
from sentineld.plan.expected import BIRTH_DTYPE
from tests.unit.migrate.running_mover import (
    PAGE,
    PATIENCE_S,
    UNMANAGED_BYTES,
    ArmedMemory,
    BusyMemory,
    FaultyMemory,
    Run,
    SlowMemory,
    WaitingMemory,
    Watcher,
    running,
)
from tests.unit.waiting import wait


@pytest.fixture
def run() -> Iterator[Run]:
    with running() as made:
        yield made


def test_moves_of_absent_pages_are_done_at_once(run: Run) -> None:
    run.mover.start(5 << 32)
    assert run.wait_published(5 << 32)
    run.mover.notify(5 << 32 | 2)
    assert run.wait_published(5 << 32 | 2)
    assert run.mover.ledger.totals() == {("demote", "already-there", "skipped"): 4 * PAGE}
    assert run.mover.by_tier() == [0, 0]
    assert run.mover.fast_bytes() == 3 * PAGE


def test_missed_positions_are_caught_up_with(run: Run) -> None:
    run.mover.start(1 << 32)
    run.mover.notify(4 << 32 | 3)
    assert run.wait_published(4 << 32 | 3)
    run.mover.notify(3 << 32)  # a late notification of an earlier position
    run.mover.notify(5 << 32)
    assert run.wait_published(5 << 32)
    assert run.published == sorted(run.published)


def test_a_paused_mover_releases_the_whole_step(run: Run) -> None:
    run.mover.start(1 << 32)
    run.mover.notify(2 << 32 | 1)
    run.mover.pause()
    assert run.wait_published(2 << 32 | 0xFFFFFFFF)
    run.mover.resume(3 << 32)
    run.mover.notify(3 << 32 | 2)
    assert run.wait_published(3 << 32 | 2)
    assert run.published == sorted(run.published)


def test_a_dead_process_ends_the_mover_and_is_reported_once(run: Run) -> None:
    run.mover.start(1 << 32)
    assert run.wait_published(1 << 32)
    run.end_process()
    run.mover.resume(2 << 32)
    assert run.wait_ended()
    assert run.ended == ["the process is gone"]


def test_entering_a_dead_process_raises(run: Run) -> None:
    run.end_process()
    with pytest.raises(ProcessLookupError):
        run.mover.enter()


def test_stop_after_a_start_without_a_free_thread(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError):
            run.mover.start(1 << 32)
    run.mover.stop()


def test_stop_without_start(run: Run) -> None:
    run.mover.stop()
    assert not run.published


def test_an_error_in_the_movers_code_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    with running(FaultyMemory()) as run:
        run.mover.start(1 << 32)
        assert run.wait_ended()
        assert run.ended == ["internal error of the daemon"]
    assert "MemoryError" in caplog.text


def test_a_move_whose_last_pages_are_late_is_counted_once() -> None:
    memory = BusyMemory()
    with running(memory) as run:
        run.mover.start(1 << 32 | 1)
        assert memory.asked.wait(PATIENCE_S)
        run.mover.notify(1 << 32 | 3)  # the move's deadline has passed
        memory.let.set()
        moved = {("demote", "plan", "moved"): 4 * PAGE}
        wait(lambda: run.mover.ledger.totals() == moved)
        assert run.mover.ledger.late_moves == 1


def test_a_boundary_interrupts_a_move_and_the_other_pages_follow() -> None:
    memory = WaitingMemory()
    with running(memory) as run:
        run.mover.start(1 << 32 | 1)
        assert memory.asked.wait(PATIENCE_S)
        run.mover.notify(1 << 32 | 3)
        assert run.wait_published(1 << 32 | 3)
        assert run.mover.ledger.totals() == {("demote", "plan", "moved"): 4 * PAGE}
        assert run.mover.ledger.calls == 2
        assert run.mover.ledger.late_moves == 1  # the move's deadline has passed


@pytest.mark.parametrize("end", ["pause", "stop"])
def test_a_paused_or_stopped_mover_ends_the_move_under_way(end: str) -> None:
    memory = WaitingMemory()
    with running(memory) as run:
        run.mover.start(1 << 32 | 1)
        assert memory.asked.wait(PATIENCE_S)
        getattr(run.mover, end)()
        assert memory.let.wait(PATIENCE_S)  # the move has ended


def test_watching_begins_and_ends_between_two_moves() -> None:
    memory, watcher = SlowMemory(), Watcher()
    with running(memory) as run:
        run.mover.start(1 << 32)
        run.mover.notify(1 << 32 | 2)
        assert memory.asked.wait(PATIENCE_S)
        begin = threading.Thread(target=lambda: run.mover.watch(watcher, watcher.begun.set))
        begin.start()
        assert not watcher.begun.wait(0.2)  # a move is under way
        memory.let.set()
        begin.join(PATIENCE_S)
        assert watcher.begun.is_set()
        assert watcher.calls == []
        memory.node = 0
        run.mover.resume(2 << 32)
        run.mover.notify(2 << 32 | 2)
        assert run.wait_published(2 << 32 | 2)
        # Both spaces are disarmed while their residency is read, then the heap while it is moved.
        assert watcher.calls[:4] == ["disarm", "disarm", "arm", "arm"]
        assert watcher.calls[4:6] == ["disarm", "arm"]
        assert run.mover.unwatch(lambda: watcher.calls[0]) == "disarm"
        assert not run.ended


def test_a_sleeping_mover_wakes_at_boundaries_that_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """It wakes for each step, and for boundary 1, where a move begins. The process waits for this
    boundary at boundary 2. The mover sleeps at boundaries 2 and 3."""
    monkeypatch.setattr("sentineld.migrate.mover.IDLE_S", 10 * PATIENCE_S)
    steps = range(6, 12)
    births = np.array([(2, 0, False, 0, PAGE)], BIRTH_DTYPE)
    with running(births=births) as run:
        run.mover.start(5 << 32)
        assert run.wait_published(5 << 32)
        for step in steps:
            for boundary in (0, 1):
                run.mover.notify(step << 32 | boundary)
                assert run.wait_published(step << 32 | boundary)
            time.sleep(0.02)  # boundary 1 is published shortly before the mover sleeps
            run.mover.notify(step << 32 | 2)
            time.sleep(0.02)  # a mover that is not asleep publishes boundary 2
            run.mover.notify(step << 32 | 3)
        asleep = [step for step in steps if step << 32 | 2 not in run.published]
        assert len(asleep) > len(steps) / 2


@pytest.mark.parametrize("restart", [False, True])
def test_watched_pages_do_not_count_as_absent(restart: bool) -> None:
    memory = ArmedMemory()
    with running(memory) as run:
        mover = run.mover
        mover.begin(1 << 32 | 2)
        mover.work()
        assert mover.by_tier() == [0, 4 * PAGE]
        mover.watch(memory, memory.arm_heap)
        armed = set(memory.armed)
        assert mover.gaps == 0
        if restart:
            mover.begin(3 << 32)
        for step in range(3 if restart else 2, 9):
            mover.notify(step << 32)
            mover.work()
            assert mover.by_tier() == [0, 4 * PAGE]
        assert armed <= memory.armed
        assert mover.gaps == (2 if restart else 0)
        memory.arena = 0
        mover.unwatch(memory.armed.clear)
        mover.notify(9 << 32)  # the residency was not read again until now
        mover.work()
        assert mover.by_tier() == [4 * PAGE, 4 * PAGE]


def test_pages_are_disarmed_before_the_residency_is_read_again() -> None:
    """If a step begins while a watch ends, the residency is read only after the watch has ended."""
    memory = ArmedMemory()
    with running(memory) as run:
        mover = run.mover
        mover.begin(1 << 32 | 2)
        mover.work()
        mover.watch(memory, memory.arm_heap)
        follower = threading.Thread(target=mover.work)

        def end() -> None:
            mover.notify(3 << 32)
            follower.start()
            follower.join(0.2)
            memory.armed.clear()

        mover.unwatch(end)
        follower.join(PATIENCE_S)
        assert mover.by_tier() == [0, 4 * PAGE]


def test_births_that_wait_for_demotions_are_not_charged() -> None:
    memory = SlowMemory()
    births = np.array([(2, 0, True, 0, 3 * PAGE)], BIRTH_DTYPE)
    with running(memory, births) as run:
        run.mover.start(1 << 32 | 2)
        assert memory.asked.wait(PATIENCE_S)
        assert run.mover.fast_bytes() == (4 + 3) * PAGE  # 4 heap pages and 3 unmanaged pages
        memory.let.set()
        assert run.wait_published(1 << 32 | 2)
        assert run.mover.fast_bytes() == (3 + 3) * PAGE  # births of 3 pages, and 3 unmanaged pages


@pytest.mark.parametrize(
    ("plan_pages", "session_pages", "promoted_pages"),
    [
        # The 3 unmanaged pages are charged to the session's budget of 5 pages, too. So only
        # 5 - 3 = 2 pages can be promoted, although the plan's budget is 4 pages.
        (4, 5, 2),
        # The 3 unmanaged pages leave 7 - 3 = 4 pages of the session's budget for promotions. The
        # mover does not limit promotions to the plan's budget of 2 pages.
        (2, 7, 4),
    ],
)
def test_promotions_and_unmanaged_bytes_share_the_session_s_budget(
    plan_pages: int, session_pages: int, promoted_pages: int
) -> None:
    memory = BusyMemory()
    memory.nodes[:], memory.busy[:] = 1, False
    memory.let.set()
    run = Run(memory, tier=0, plan_bytes=plan_pages * PAGE, session_bytes=session_pages * PAGE)
    try:
        run.mover.begin(1 << 32 | 1)
        run.mover.work()
        assert run.mover.by_tier() == [promoted_pages * PAGE, (4 - promoted_pages) * PAGE]
        assert run.mover.fast_bytes() == promoted_pages * PAGE + UNMANAGED_BYTES
    finally:
        run.end_process()


def test_entering_keeps_to_the_session_s_budget() -> None:
    memory = BusyMemory()
    memory.nodes[:], memory.busy[:] = 1, False
    memory.let.set()
    initial = np.array([(0, 0, 4, Space.HEAP, 0, 0, 4 * PAGE)], MOVE_DTYPE)
    # Of the session's 5 pages, 3 are for the unmanaged bytes.
    run = Run(memory, session_bytes=5 * PAGE, initial=initial)
    try:
        run.mover.enter()
        assert run.mover.by_tier() == [2 * PAGE, 2 * PAGE]
        assert run.mover.ledger.totals() == {
            ("promote", "initial", "moved"): 2 * PAGE,
            ("promote", "no-room", "skipped"): 2 * PAGE,
        }
    finally:
        run.end_process()
