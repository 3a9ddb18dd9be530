# SPDX-License-Identifier: Apache-2.0
"""The daemon's part in the moves of a plan on paged tiers: initial places, healing, accounting."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest

from sentineld.migrate import paged
from sentineld.migrate.ledger import Entry
from sentineld.migrate.paged import PagedMemory
from sentineld.migrate.pager_moves import HEAL_STEPS_MAX, PagerMoves
from sentineld.migrate.ports import ProcessPorts
from sentineld.model import protocol
from sentineld.model.plan import Space
from sentineld.model.tiers import Tier, Tiers
from sentineld.observe.paging_segment import PagingSegment
from sentineld.plan.residency import ABSENT
from tests.unit.plan.toys import HEAP, PAGE, toy_plan

ARENA = 1 << 40
TIERS = Tiers((Tier((0,), 1 << 30), Tier((1,), 1 << 40)), 1e9, "paged", paged=True)
IN, OUT = 1, 2


@dataclass
class Process:
    """A process with a pager: 5 pages of arena, 6 pages of heap."""

    position: int = 7 << 32
    unmanaged_bytes: int = 0
    asked: list[int] = field(default_factory=list)  # the positions at which it wakes the daemon
    words: npt.NDArray[np.void] = field(default_factory=lambda: np.zeros(1, protocol.PAGING_DTYPE))
    maps: dict[Space, npt.NDArray[np.uint8]] = field(
        default_factory=lambda: {
            Space.ARENA: np.zeros(5, np.uint8),
            Space.HEAP: np.full(6, IN, np.uint8),
        }
    )

    def queued(self, queue: str) -> list[tuple[int, ...]]:
        """The queue's (page, pages, space) ranges; empties the queue."""
        head = int(self.words[queue]["head"][0])
        found: list[tuple[int, ...]] = self.words[queue]["ranges"][0, :head].tolist()
        self.words[queue]["head"] = 0
        return found


@pytest.fixture
def process() -> Process:
    return Process()


@pytest.fixture
def moves(process: Process) -> Iterator[PagerMoves]:
    spaces = {Space.ARENA: (ARENA, 5 * PAGE), Space.HEAP: (HEAP, 6 * PAGE)}
    wake_fd = os.eventfd(0, os.EFD_NONBLOCK)
    memory = PagedMemory(
        cast(Any, process), PagingSegment(process.words), spaces, TIERS, wake_fd, PAGE
    )
    ports = ProcessPorts(
        pid=1,
        memory=memory,
        spaces=spaces,
        publish=lambda _: None,
        position=lambda: process.position,
        wake_at=process.asked.append,
        unmanaged_bytes=lambda: process.unmanaged_bytes,
    )
    yield PagerMoves(memory, toy_plan(), ports)
    memory.close()
    os.close(wake_fd)


def test_entering_queues_the_moves_to_the_initial_tiers(
    process: Process, moves: PagerMoves
) -> None:
    process.maps[Space.HEAP][4] = OUT  # half of the parameter is in the file
    moves.enter()
    assert process.queued("evict") == [(2, 2, 1)]  # half of the state is to be evicted
    assert process.queued("fetch") == [(4, 1, 1)]
    assert moves.ledger.totals() == {
        Entry("demote", "initial", "moved"): 2 * PAGE,
        Entry("promote", "initial", "moved"): PAGE,
    }


def test_each_step_wakes_the_daemon_once(process: Process, moves: PagerMoves) -> None:
    moves.start(5 << 32 | 3)
    moves.notify(6 << 32)
    moves.notify(8 << 32 | 2)
    moves.notify(2**64 - 1)
    assert process.asked == [6 << 32, 7 << 32, 9 << 32, 2**64]


def test_misplaced_pages_that_no_move_touches_are_healed(
    process: Process, moves: PagerMoves
) -> None:
    process.maps[Space.HEAP][:] = [OUT, OUT, OUT, OUT, IN, OUT]
    moves.start(process.position)
    moves.notify(process.position)
    # Only page 5 is healed: it belongs to the parameter, which stays fast. The plan itself (see
    # toy_plan()) moves the state's pages 0 and 1, and pages 2 and 3 stay slow.
    assert process.queued("fetch") == [(5, 1, 1)]
    healed = []
    for step in range(8, 80):
        process.position = step << 32
        moves.notify(process.position)
        if process.queued("fetch"):
            healed.append(step)
    assert healed == [8, 10, 14, 22, 38, 54, 70]
    assert healed[-1] - healed[-2] == HEAL_STEPS_MAX


def test_moves_are_counted_for_the_step_that_ended(process: Process, moves: PagerMoves) -> None:
    process.words["evicted_pages"], process.words["fetched_pages"] = 30, 20
    process.words["late_moves"] = 2
    assert moves.ledger.step(7).moved_bytes == 0  # the step has not ended
    process.position = 8 << 32 | 3
    step = moves.ledger.step(7)
    assert (step.demoted_bytes, step.promoted_bytes, step.late_moves) == (30 * PAGE, 20 * PAGE, 2)
    process.words["evicted_pages"] = 31
    process.position = 9 << 32
    moves.notify(process.position)
    assert moves.ledger.step(8).demoted_bytes == PAGE
    assert moves.ledger.step(8).promoted_bytes == 0
    assert moves.ledger.late_moves == 2


def test_the_moves_of_an_unfinished_step_count_when_the_plan_ends(
    process: Process, moves: PagerMoves
) -> None:
    process.words["evicted_pages"], process.words["late_moves"] = 30, 1
    moves.stop()
    assert moves.ledger.step(7).demoted_bytes == 30 * PAGE
    assert moves.ledger.late_moves == 1
    moves.stop()
    assert moves.ledger.moved_bytes() == 30 * PAGE


def test_counters_that_decrease_count_nothing(process: Process, moves: PagerMoves) -> None:
    process.maps[Space.HEAP][2:4] = OUT  # no page is misplaced
    process.words["evicted_pages"], process.words["late_moves"] = 30, 9
    process.position = 8 << 32
    moves.notify(process.position)
    process.words["evicted_pages"], process.words["late_moves"] = 10, 3
    process.position = 9 << 32
    assert moves.ledger.step(8).moved_bytes == 0
    assert moves.ledger.late_moves == 9


def test_bytes_in_memory_and_in_the_file_come_from_the_map(
    process: Process, moves: PagerMoves
) -> None:
    process.maps[Space.ARENA][:] = [0, IN, IN, OUT, 77]
    process.maps[Space.HEAP][0] = OUT
    process.unmanaged_bytes, process.position = 100, 7 << 32 | 3
    assert moves.by_tier() == [7 * PAGE, 2 * PAGE]
    assert moves.fast_bytes() == 7 * PAGE + 100
    found = moves.page_tiers()
    assert found.stretch == 3
    assert found.tiers[Space.ARENA].tolist() == [ABSENT, 0, 0, 1, ABSENT]
    assert found.tiers[Space.HEAP].tolist() == [1, 0, 0, 0, 0, 0]
    assert moves.done_position == process.position


def test_queueing_ends_when_the_queue_stays_full(
    process: Process, moves: PagerMoves, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A process that was stopped or has ended takes no moves from the queue.
    monkeypatch.setattr(paged, "ROOM_WAIT_S", 0.0)
    monkeypatch.setattr(moves._memory, "batch_pages", 1)
    asked: list[int] = []
    append = PagingSegment.append

    def full(segment: PagingSegment, evict: bool, space: Space, ranges: Any) -> Any:
        if evict:
            asked.append(len(ranges))
            return ranges
        return append(segment, evict, space, ranges)

    monkeypatch.setattr(PagingSegment, "append", full)
    moves.enter()
    assert asked == [1]


def test_promotions_without_room_in_the_queue_are_counted(
    process: Process, moves: PagerMoves, monkeypatch: pytest.MonkeyPatch
) -> None:
    process.maps[Space.HEAP][2:] = OUT  # only the parameter, pages 4 and 5, is misplaced
    monkeypatch.setattr(PagingSegment, "append", lambda *arguments: arguments[-1])
    moves.enter()
    assert moves.ledger.totals() == {
        Entry("promote", "no-room", "skipped"): 2 * PAGE,
        Entry("promote", "initial", "moved"): 0,
    }
