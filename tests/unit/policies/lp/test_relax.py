# SPDX-License-Identifier: Apache-2.0
"""best_lives() finds the best of all lives of a chunk, and relax() bounds the exact optimum."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from sentineld.plan.items import Items
from sentineld.policies.lp.relax import Capacities, Costs, Prices, best_lives, relax, used_pages
from sentineld.policies.sentinel.fit import Fitting

STRETCHES = 5


@st.composite
def some_items(draw: st.DrawFn) -> Items:
    many = draw(st.integers(1, 4))
    persistent = np.array([draw(st.booleans()) for _ in range(many)])
    length = np.array(
        [STRETCHES if lasting else draw(st.integers(1, STRETCHES)) for lasting in persistent]
    )
    birth = np.array(
        [0 if lasting else draw(st.integers(0, STRETCHES - 1)) for lasting in persistent]
    )
    pages = np.array([draw(st.integers(1, 3)) for _ in range(many)])
    touched = np.array(
        [[draw(st.booleans()) for _ in range(many)] for _ in range(STRETCHES)], dtype=np.bool_
    )
    alive = np.arange(STRETCHES)[:, None] < length[None, :]
    return Items(
        tensor=np.arange(many),
        first_page=np.zeros(many, np.int64),
        pages=pages,
        birth=birth,
        length=length,
        persistent=persistent,
        worth=(touched & alive) * pages.astype(np.float64),
    )


costs_of_stretches = st.lists(
    st.tuples(st.sampled_from([0.0, 0.1, 0.4]), st.sampled_from([0.0, 0.2, 0.7])),
    min_size=STRETCHES,
    max_size=STRETCHES,
)
capacities_of_stretches = st.lists(
    st.tuples(st.integers(0, 6), st.integers(0, 4)), min_size=STRETCHES, max_size=STRETCHES
)


def lives_of(items: Items, chunk: int) -> list[tuple[list[bool], list[bool]]]:
    """All lives of a chunk: (fast, moving) by position."""
    length = int(items.length[chunk])
    found = []
    for states in product((False, True), repeat=length + 1):
        if items.persistent[chunk] and states[0] != states[-1]:
            continue
        if not items.persistent[chunk] and states[-1] != states[-2]:
            continue
        moving = [states[at] != states[at + 1] for at in range(length)]
        found.append((list(states[:-1]), moving))
    return found


@given(some_items(), costs_of_stretches)
def test_best_lives_are_the_best_of_all(items: Items, prices: list[tuple[float, float]]) -> None:
    table = np.array(prices)
    stretch = items.stretch_of()
    costs = Costs(table[:, 0][stretch] * items.pages, table[:, 1][stretch] * items.pages)
    lives = best_lives(items, costs)
    for chunk in range(len(items.pages)):
        best = max(
            sum(
                (items.worth[at, chunk] if fast[at] and not moving[at] else 0.0)
                - (costs.room[at, chunk] if fast[at] or moving[at] else 0.0)
                - (costs.move[at, chunk] if moving[at] else 0.0)
                for at in range(len(fast))
            )
            for fast, moving in lives_of(items, chunk)
        )
        assert lives.value[chunk] == pytest.approx(best)
    gained = (
        lives.served(items) - (costs.room * lives.held).sum(0) - (costs.move * lives.moving).sum(0)
    )
    assert gained == pytest.approx(lives.value)


def exact(items: Items, capacities: Capacities) -> float:
    """Optimum of the relaxed problem, in which parts of a chunk can have different lives."""
    gains: list[float] = []
    rows: list[np.ndarray] = []
    owner: list[int] = []
    stretch = items.stretch_of()
    for chunk in range(len(items.pages)):
        for fast, moving in lives_of(items, chunk):
            taken = np.zeros(2 * STRETCHES)
            gain = 0.0
            for at in range(len(fast)):
                place = stretch[at, chunk]
                taken[place] += items.pages[chunk] * (fast[at] or moving[at])
                taken[STRETCHES + place] += items.pages[chunk] * moving[at]
                gain += items.worth[at, chunk] * (fast[at] and not moving[at])
            gains.append(gain)
            rows.append(taken)
            owner.append(chunk)
    share = (np.array(owner)[None, :] == np.arange(len(items.pages))[:, None]).astype(float)
    result = linprog(
        -np.array(gains),
        A_ub=np.array(rows).T,
        b_ub=np.concatenate([capacities.room, capacities.moves]),
        A_eq=share,
        b_eq=np.ones(len(share)),
    )
    return -float(result.fun)


@given(some_items(), capacities_of_stretches)
def test_the_bound_holds_and_schedules_keep_to_the_capacities(
    items: Items, limits: list[tuple[int, int]]
) -> None:
    table = np.array(limits, dtype=np.float64)
    capacities = Capacities(table[:, 0], table[:, 1])
    optimum = exact(items, capacities)
    relaxed = relax(items, capacities, 40)
    generous = relax(items, capacities, 40, generous=True)
    assert relaxed.bound >= optimum - 1e-6
    assert generous.bound >= optimum - 1e-6

    fitting = Fitting(items, capacities, relaxed.guide)
    fitting.fill()
    fitting.unify_births()
    before = fitting.lives().served(items).sum()
    fitting.advance(3)
    lives = fitting.lives()
    room, moves = used_pages(items, lives, items.stretch_of())
    assert np.all(room <= capacities.room)
    assert np.all(moves <= capacities.moves)
    assert before <= lives.served(items).sum() <= optimum + 1e-6
    for chunk in range(len(items.pages)):
        length = int(items.length[chunk])
        life = lives.fast[:length, chunk].tolist(), lives.moving[:length, chunk].tolist()
        assert life in lives_of(items, chunk)


def test_prices_become_tight() -> None:
    # Ten chunks of one page are each read in stretches 0 and 2. There is room for four chunks, and
    # nothing can move. At best, four chunks stay fast and serve 4 x 2 = 8 of the 20 accesses.
    worth = np.zeros((4, 10))
    worth[[0, 2]] = 1.0
    items = Items(
        tensor=np.arange(10),
        first_page=np.zeros(10, np.int64),
        pages=np.ones(10, np.int64),
        birth=np.zeros(10, np.int64),
        length=np.full(10, 4),
        persistent=np.ones(10, np.bool_),
        worth=worth,
    )
    capacities = Capacities(np.full(4, 4.0), np.zeros(4))
    assert relax(items, capacities, 300).bound == pytest.approx(8.0, rel=0.02)
    fitting = Fitting(items, capacities, Prices(np.full(4, 0.1), np.full(4, 0.1)))
    fitting.fill()
    assert fitting.lives().served(items).sum() == 8.0
