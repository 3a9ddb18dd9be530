# SPDX-License-Identifier: Apache-2.0
"""AutoTM's integer program: spans, gaps and solutions; see Span and Gap in autotm_program.py."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sentineld.model.profile import Profile
from sentineld.model.timing import timing_of
from sentineld.policies.rivals.autotm_program import (
    MOVE_WEIGHT,
    Answer,
    Gap,
    Problem,
    Span,
    problem_of,
    solve,
)
from tests.unit.policies.rivals.guests import with_guest
from tests.unit.policies.rivals.laps import PAGE, Life, lap, moving


def test_spans_and_gaps_by_hand() -> None:
    profile = with_guest()
    problem = problem_of(profile, timing_of(moving(64)).extra_ns(profile), PAGE / 64)
    # The first tensor is used in stretches 5 and 0, which are adjacent across the step's end: its
    # span has the positions 5 and 6, and position 6 is stretch 0 of the next step.
    assert problem.spans == (Span(0, 5, 6), Span(1, 0, 0), Span(1, 3, 3), *problem.spans[3:])
    assert problem.spans[3:] == (Span(2, 2, 3), Span(3, 0, 1))
    assert problem.gaps == (
        Gap(0, 0, 0, (7, 8), (9, 10)),
        Gap(1, 1, 2, (1,), (2,)),
        Gap(1, 2, 1, (4,), (5,)),
        Gap(2, 3, 3, (4, 5), (6, 7)),
    )


def solved(profile: Profile, room: int, pages_per_s: float) -> tuple[Problem, Answer]:
    page_ns = 1e9 / pages_per_s
    problem = problem_of(profile, timing_of(moving(pages_per_s)).extra_ns(profile), 2 * page_ns)
    return problem, solve(problem, room, (page_ns, page_ns), 1e-6, (10.0, 10.0))


def test_with_room_for_everything_all_spans_are_fast() -> None:
    _, answer = solved(with_guest(), 4 * 64, 64)
    assert answer.fast == (True,) * 5
    assert answer.least_ns == pytest.approx(0.0, abs=1.0)
    assert not any(pages.any() for pages in (*answer.out, *answer.back))


def test_without_room_all_spans_are_slow() -> None:
    _, answer = solved(with_guest(), 0, 64)
    assert answer.fast == (False,) * 5
    assert answer.least_ns == pytest.approx(8 * 64 * PAGE)  # eight uses


def test_the_tensor_with_the_long_gap_goes_out_as_a_whole() -> None:
    problem, answer = solved(with_guest(), 3 * 64, 64)
    assert answer.fast == (True,) * 5
    assert [int(pages.sum()) for pages in answer.out] == [64, 0, 0, 0]
    assert [int(pages.sum()) for pages in answer.back] == [64, 0, 0, 0]
    for gap, out, back in zip(problem.gaps, answer.out, answer.back, strict=True):
        assert (len(out), len(back)) == (len(gap.out), len(gap.back))
    # The two transfers take a second each; they count in the objective with a small weight.
    assert answer.least_ns == pytest.approx(2e9 * MOVE_WEIGHT)


def test_without_bandwidth_nothing_moves() -> None:
    _, answer = solved(with_guest(), 3 * 64, 1e-3)
    assert not any(pages.any() for pages in (*answer.out, *answer.back))
    # At least one of the four tensors is slow in its two uses.
    assert answer.fast.count(False) >= 1


def test_a_gap_of_one_stretch_is_no_round_trip() -> None:
    profile = lap(6, Life(64, (0, 2)))
    problem = problem_of(profile, timing_of(moving(64)).extra_ns(profile), 1.0)
    short, long = problem.gaps
    assert (short.out, short.back, short.round_trip) == ((1,), (1,), False)
    assert long.round_trip


def test_tensors_whose_slow_accesses_cost_nothing_have_no_spans() -> None:
    # The timing model assumes that tensors of less than 64 KiB stay in the caches (CACHED_BYTES in
    # timing.py).
    profile = lap(4, Life(15, (0, 2)), Life(16, (1,)))
    problem = problem_of(profile, timing_of(moving(64)).extra_ns(profile), 1.0)
    assert {span.tensor for span in problem.spans} == {1}
    assert list(problem.cost_ns) == [1]
    assert problem.cost_ns[1].tolist() == [0.0, 16 * PAGE, 0.0, 0.0]


@settings(max_examples=20)
@given(
    st.lists(
        st.tuples(st.integers(16, 96), st.sets(st.integers(0, 7), min_size=1, max_size=4)),
        min_size=1,
        max_size=4,
    ),
    st.integers(0, 300),
    st.sampled_from([0.5, 64.0, 500.0]),
)
def test_a_tensor_moves_as_a_whole_and_costs_no_less_than_the_relaxation(
    tensors: list[tuple[int, set[int]]], room: int, pages_per_s: float
) -> None:
    profile = lap(8, *(Life(pages, tuple(sorted(used))) for pages, used in tensors))
    problem, answer = solved(profile, room, pages_per_s)
    for gap, out, back in zip(problem.gaps, answer.out, answer.back, strict=True):
        pages = tensors[gap.tensor][0]
        assert int(out.sum()) in (0, pages)
        assert int(back.sum()) in (0, pages)
        if out.any():
            assert answer.fast[gap.before]
    slow_ns = sum(
        float(problem.cost_ns[span.tensor][np.arange(span.since, span.until + 1) % 8].sum())
        for span, fast in zip(problem.spans, answer.fast, strict=True)
        if not fast
    )
    assert slow_ns >= answer.least_ns * (1 - 1e-3) - 8e9 * MOVE_WEIGHT
