# SPDX-License-Identifier: Apache-2.0
"""Pages that a call of move_pages() moved and that the process dropped during this call.

page     0 1 2 3 4 5 6 7
region   [ fast ][ slow ]
moved      1 2 3 4     7
dropped    [   )   [   )     pages 1 and 2, and 5 and 6
"""

from __future__ import annotations

import numpy as np

from sentineld.migrate.mover import Mover
from sentineld.migrate.ports import PlannedStep, ProcessPorts
from sentineld.migrate.process_memory import Wait
from sentineld.migrate.reborn import back_to_their_region, dropped_pages
from sentineld.migrate.syscalls import Addresses, MoveResult, Status
from sentineld.model.plan import MOVE_DTYPE, SLOT_DTYPE, Layout, Plan, Prediction, Region, Space
from sentineld.plan.expected import BIRTH_DTYPE, DROP_DTYPE, EVENT_DTYPE, ExpectedStep
from tests.unit.plan.toys import two_tiers

PAGE = 4096
REGIONS = (
    Region(0, 4 * PAGE, 0, "fast"),
    Region(4 * PAGE, 4 * PAGE, 1, "slow"),
    Region(8 * PAGE, 4 * PAGE, None, "first touch"),
)


def test_only_dropped_pages_are_found() -> None:
    moved = np.array([1, 2, 3, 4, 7])
    drops = np.array([(0, PAGE, 2 * PAGE), (1, 5 * PAGE, 2 * PAGE)], DROP_DTYPE)
    assert dropped_pages(moved, drops, PAGE).tolist() == [1, 2]
    assert dropped_pages(moved, drops[:0], PAGE).tolist() == []
    assert dropped_pages(moved[:0], drops, PAGE).tolist() == []


def test_pages_of_slow_regions_are_moved_back_in_ranges() -> None:
    rows = back_to_their_region(np.array([2, 3, 4, 5, 7, 9]), REGIONS, PAGE)
    assert rows[["space", "tier", "offset", "bytes"]].tolist() == [
        (Space.ARENA, 1, 4 * PAGE, 2 * PAGE),
        (Space.ARENA, 1, 7 * PAGE, PAGE),
    ]
    assert len(back_to_their_region(np.array([0, 1]), REGIONS, PAGE)) == 0


class OnePage:
    """Memory with a single page, which is on `node`. If the page dies and is born again during a
    call of move_pages(), the call moves the page of the new tensor."""

    batch_pages = ahead_pages = 4
    exact = False
    waits = True
    node = 1

    def query_pages(self, pages: Addresses) -> Status:
        return np.full(len(pages), self.node, np.int32)

    def move_pages(self, pages: Addresses, node: int, wait: Wait | None = None) -> MoveResult:
        self.node = node
        return MoveResult(self.query_pages(pages), 0)

    def begin_series(self, since_ns: int) -> None:
        pass

    def best_node(self, tier: int) -> tuple[int, int]:
        return tier, 1 << 30


def test_a_page_that_is_reborn_in_the_stretch_in_which_its_move_ends_is_not_overlooked() -> None:
    """In stretch 1, a tensor dies and another one is born in slow memory on its page. A call that
    promotes the page runs at the same time and also ends in stretch 1."""
    drops = np.array([(1, 0, PAGE)], DROP_DTYPE)
    births = np.array([(1, 1, True, 0, PAGE)], BIRTH_DTYPE)
    events = np.array([(1, False, 0, 0, PAGE), (1, True, 1, 0, PAGE)], EVENT_DTYPE)
    moves = np.array([(1, 3, 0, Space.ARENA, 0, 0, PAGE)], MOVE_DTYPE)
    waits = np.full(4, -1, np.int32)
    layout = Layout(np.zeros(0, SLOT_DTYPE), np.zeros(0, np.uint32), (), waits, PAGE)
    plan = Plan(
        "test", 1 << 20, layout, moves, np.zeros(0, np.uint8), (), Prediction(0, 0, 0, 0, 0.0)
    )
    memory = OnePage()
    mover = Mover(
        two_tiers(),
        PlannedStep(plan, ExpectedStep(births, drops, events, np.zeros(4, np.int64))),
        ProcessPorts(
            pid=1,
            memory=memory,
            spaces={Space.ARENA: (1 << 30, PAGE), Space.HEAP: (1 << 31, 0)},
            publish=lambda _: None,
        ),
        budget_bytes=1 << 20,
    )
    mover.begin(2 << 32)
    mover.work()
    mover.notify(2 << 32 | 1)
    mover.work()
    assert (memory.node, mover.by_tier()) == (0, [PAGE, 0])
    mover.notify(2 << 32 | 2)
    mover.work()
    assert mover.by_tier() == [PAGE, 0]
