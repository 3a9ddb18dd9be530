# SPDX-License-Identifier: Apache-2.0
"""The observations of the large toy profile (toys.large_profile()) that a reactive policy gets, and
the times of these observations."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from sentineld.model.timing import timing_of
from sentineld.plan.policy import MoveRequest, Observation
from sentineld.simulate.access_feed import AccessFeed
from sentineld.simulate.script import scripts
from sentineld.simulate.world import NEVER, World
from tests.unit.plan.toys import LARGE, PAGE, large_plan, large_profile, two_tiers

SECOND_NS = 1e9
SCRATCH_CELL, ACTIVATION_CELL, GRADIENT_CELL, MOVING_CELL, RESTING_CELL, PARAMETER_CELL = range(6)


@dataclass
class Recorder:
    """A reactor (see plan/policy.py) that keeps its observations and requests the same moves at
    each tick."""

    interval_ns: float
    requests: list[MoveRequest] = field(default_factory=list)
    observed: list[Observation] = field(default_factory=list)

    def tick(self, observation: Observation) -> list[MoveRequest]:
        self.observed.append(observation)
        return self.requests


def fed(
    reactor: Recorder, stretches: int, capacity: int | None = 20 * LARGE, pages_per_s: float = 1000
) -> World:
    """The world after some stretches of a second each; all pages are resident."""
    profile, timing = large_profile(), timing_of(two_tiers(pages_per_s * PAGE))
    cells = scripts(large_plan(), profile, timing).cells
    world = World(
        cells, capacity, timing.promote_ns_per_byte * PAGE, timing.demote_ns_per_byte * PAGE
    )
    world.place(0, len(cells.pages), cells.born_fast)
    feed = AccessFeed(profile, cells, timing, world, reactor)
    for stretch in range(stretches):
        world.boundary += 1
        world.run(world.now_ns + SECOND_NS)
        feed.passed(stretch % 4)
    return world


def test_it_ticks_at_the_first_boundary_after_the_interval() -> None:
    for interval_s, ticks in ((0.5, 8), (1.0, 8), (1.5, 4), (2.5, 2), (9.0, 0)):
        reactor = Recorder(interval_s * SECOND_NS)
        fed(reactor, 8)
        assert len(reactor.observed) == ticks, interval_s


def test_accesses_are_counted_from_tick_to_tick() -> None:
    # Each page is accessed once in each stretch that reads its tensor. There is a tick after every
    # two stretches. The scratch has 63 pages, but large_profile() counts the access to it as an
    # access to 64 pages.
    reactor = Recorder(2 * SECOND_NS)
    fed(reactor, 8)
    accesses = [observation.accesses for observation in reactor.observed]
    assert accesses[0] == pytest.approx([64 / 63, 1, 0, 0, 0, 1])
    assert accesses[1] == pytest.approx([0, 1, 2, 1, 1, 2])
    assert accesses[2] == pytest.approx(accesses[0])


def test_writes_are_noted_from_tick_to_tick() -> None:
    # All accesses write. Stretches 2 and 3 use all cells but the scratch's.
    reactor = Recorder(2 * SECOND_NS)
    fed(reactor, 8)
    written = [observation.written.tolist() for observation in reactor.observed]
    assert written[0] == [True, True, False, False, False, True]
    assert written[1] == [False, True, True, True, True, True]
    assert written[2] == written[0]


def test_residency_room_and_bandwidth_are_observed() -> None:
    reactor = Recorder(SECOND_NS)
    world = fed(reactor, 1)
    (seen,) = reactor.observed
    assert (seen.now_ns, seen.stretch) == (SECOND_NS, 0)
    assert seen.fast.tolist() == [63, 2 * LARGE, 0, 0, 0, 0]
    assert seen.slow.tolist() == [0, 0, *[2 * LARGE] * 4]
    assert seen.capacity_pages == 20 * LARGE
    assert seen.free_pages == 20 * LARGE - 63 - 2 * LARGE == world.room()
    assert seen.move_pages == pytest.approx(1000, abs=1)


def test_without_a_limit_the_tier_is_never_full() -> None:
    reactor = Recorder(SECOND_NS)
    fed(reactor, 1, capacity=None)
    assert (reactor.observed[0].capacity_pages, reactor.observed[0].free_pages) == (NEVER, NEVER)


def test_without_migration_no_page_can_be_moved() -> None:
    reactor = Recorder(SECOND_NS)
    fed(reactor, 1, pages_per_s=0.0)
    assert reactor.observed[0].move_pages == 0


def test_requested_pages_move_until_the_next_tick() -> None:
    # The requests promote 100 of the parameter's 128 pages and demote 10 of the scratch's pages.
    reactor = Recorder(
        SECOND_NS, [MoveRequest(SCRATCH_CELL, 1, 10), MoveRequest(PARAMETER_CELL, 0, 100)]
    )
    world = fed(reactor, 2, pages_per_s=1000)
    assert reactor.observed[1].fast[PARAMETER_CELL] == 100
    assert reactor.observed[1].fast[SCRATCH_CELL] == 53
    # At ten pages a second, the promotions that the reactor requests at the first tick do not
    # finish, and the second tick discards them.
    slow = fed(reactor, 2, pages_per_s=10)
    assert slow.fast[PARAMETER_CELL] == 0
    assert slow.counts.demoted_pages == 10
    assert [item.left for item in slow.queue.promotions] == [100]
    assert world.counts.late_moves == slow.counts.late_moves == 0


@dataclass
class Delayer(Recorder):
    """A recorder whose observation takes half a second at each tick."""

    def delay_ns(self) -> float:
        return 0.5 * SECOND_NS


def test_the_time_of_observations_passes_and_pages_move_meanwhile() -> None:
    reactor = Delayer(SECOND_NS, [MoveRequest(PARAMETER_CELL, 0, 100)])
    world = fed(reactor, 2, pages_per_s=10)
    # Two stretches of a second each, and half a second of observation after each. The moves that
    # are requested at the first tick are carried out in the second stretch and the observation
    # after it.
    assert world.now_ns == 3 * SECOND_NS
    assert [observation.now_ns for observation in reactor.observed] == [SECOND_NS, 2.5 * SECOND_NS]
    assert world.fast[PARAMETER_CELL] == 15


def test_an_observation_is_not_changed_later() -> None:
    reactor = Recorder(SECOND_NS, [MoveRequest(PARAMETER_CELL, 0, 100)])
    fed(reactor, 3)
    assert reactor.observed[0].fast[PARAMETER_CELL] == 0
    assert reactor.observed[0].accesses[ACTIVATION_CELL] == pytest.approx(1)
    assert reactor.observed[1].accesses[ACTIVATION_CELL] == 0
