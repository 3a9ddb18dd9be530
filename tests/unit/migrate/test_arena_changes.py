# SPDX-License-Identifier: Apache-2.0
"""Births and drops of steady steps, applied to the map of an arena of twelve pages."""

from __future__ import annotations

import errno

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sentineld.migrate.arena_changes import ArenaChanges, birth_node
from sentineld.migrate.residency_map import ABSENT, ResidencyMap
from sentineld.model.tiers import Tier, Tiers
from sentineld.plan.expected import (
    BIRTH_DTYPE,
    DROP_DTYPE,
    EVENT_DTYPE,
    UNKNOWN_TIER,
    ExpectedStep,
)

PAGE = 4096
PAGES = 12
STRETCHES = 3
STEPS = 4
TIERS = Tiers((Tier((0,), 1 << 30), Tier((1,), 1 << 30)), 1e8, "config")

STRETCH = st.integers(0, STRETCHES - 1)
PAGE_RANGE = st.tuples(st.integers(0, PAGES - 1), st.integers(1, 5))
BIRTHS = st.lists(
    st.tuples(STRETCH, st.sampled_from([0, 1, UNKNOWN_TIER]), st.booleans(), PAGE_RANGE), max_size=8
)
DROPS = st.lists(st.tuples(STRETCH, PAGE_RANGE), max_size=5)
STATUSES = st.lists(
    st.tuples(st.integers(0, PAGES - 1), st.sampled_from([0, 1, -errno.ENOENT])), max_size=3
)


def pages_of(of: tuple[int, int]) -> range:
    """The pages of a range (first page, pages), clipped to the map."""
    first, count = of
    return range(first, min(first + count, PAGES))


class Model:
    """The nodes of the pages, changed by each birth and each drop in turn."""

    def __init__(
        self,
        births: list[tuple[int, int, bool, tuple[int, int]]],
        drops: list[tuple[int, tuple[int, int]]],
    ) -> None:
        self.births, self.drops = births, drops
        self.nodes = [ABSENT] * PAGES

    def begin(self, stretch: int, survivors: bool = False) -> list[int]:
        appeared = []
        for at, tier, survives, of in self.births:
            for page in pages_of(of):
                if at == stretch and survives >= survivors and self.nodes[page] == ABSENT:
                    self.nodes[page] = birth_node(TIERS, tier)
                    appeared.append(page)
        return sorted(appeared)

    def end(self, stretch: int) -> None:
        dropped = [page for at, of in self.drops if at == stretch for page in pages_of(of)]
        for page in dropped:
            self.nodes[page] = ABSENT
        if dropped:
            self.begin(stretch, survivors=True)


@given(BIRTHS, DROPS, st.lists(STATUSES, min_size=STEPS * STRETCHES, max_size=STEPS * STRETCHES))
def test_the_map_is_as_if_each_birth_were_applied(
    births: list[tuple[int, int, bool, tuple[int, int]]],
    drops: list[tuple[int, tuple[int, int]]],
    statuses: list[list[tuple[int, int]]],
) -> None:
    """At the other boundaries than boundaries(), a settled step changes nothing.

    statuses: for each stretch, the results of moves that end in it.
    """
    step = ExpectedStep(
        np.array([(s, t, v, o * PAGE, n * PAGE) for s, t, v, (o, n) in births], BIRTH_DTYPE),
        np.array([(s, o * PAGE, n * PAGE) for s, (o, n) in drops], DROP_DTYPE),
        np.zeros(0, EVENT_DTYPE),
        np.zeros(STRETCHES, np.int64),
    )
    arena, model = ResidencyMap(1 << 30, PAGES * PAGE), Model(births, drops)
    changes = ArenaChanges(arena, step, TIERS)
    before: list[int] | None = None  # the nodes before a boundary that changes nothing
    for now, results in enumerate(statuses):
        stretch = now % STRETCHES
        assert sorted(changes.begin(stretch).tolist()) == model.begin(stretch)
        assert before is None or before == model.nodes
        for page, status in results:
            arena.apply(np.array([page]), np.array([status], np.int32))
            model.nodes[page] = max(status, ABSENT)
            if status < 0:
                changes.disturbed()
        quiet = changes.settled and (stretch + 1) % STRETCHES not in changes.boundaries()
        before = arena.nodes.tolist() if quiet else None
        changes.end(stretch)
        model.end(stretch)
        assert arena.nodes.tolist() == model.nodes
        assert arena.tier_pages == [model.nodes.count(0), model.nodes.count(1)]


def test_without_a_disturbance_only_dropped_pages_are_born_again() -> None:
    """Pages 0-3 are born in stretch 0; pages 2 and 3 are dropped in stretch 2."""
    step = ExpectedStep(
        np.array([(0, 0, True, 0, 4 * PAGE)], BIRTH_DTYPE),
        np.array([(2, 2 * PAGE, 2 * PAGE)], DROP_DTYPE),
        np.zeros(0, EVENT_DTYPE),
        np.zeros(STRETCHES, np.int64),
    )
    arena = ResidencyMap(1 << 30, PAGES * PAGE)
    changes = ArenaChanges(arena, step, TIERS)

    def born() -> list[int]:
        """Make page 0 absent from the map, without disturbed(), then run a step; returns the pages
        that appear at the beginning of stretch 0."""
        arena.apply(np.array([0]), np.array([-errno.ENOENT], np.int32))
        found = changes.begin(0).tolist()
        for stretch in range(STRETCHES):
            if stretch:
                changes.begin(stretch)
            changes.end(stretch)
        return found

    assert born() == [0, 1, 2, 3]
    assert born() == [2, 3]
    changes.disturbed()
    assert born() == [0, 2, 3]
    assert born() == [2, 3]
