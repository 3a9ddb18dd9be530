# SPDX-License-Identifier: Apache-2.0
"""TENSILE's passes, checked by hand."""

from __future__ import annotations

import pytest

from sentineld.base.errors import SentinelError
from sentineld.model.profile import Profile
from sentineld.plan.check import verify
from sentineld.policies.registry import policy
from sentineld.policies.rivals.swaps import Gap, gaps, open_book
from sentineld.policies.rivals.tensile import PASSES_MIN, lower_peak
from sentineld.simulate.simulate import simulate
from tests.unit.policies.rivals.laps import PAGE, Life, lap, moving


def two_peaks() -> Profile:
    """The parameter is used in two stretches. Two transient tensors ("guests") are alive
    between its uses. In the drawing, (x) is a use of the parameter, and [ and ] are a guest's birth
    and death.

    stretch      0   1   2   3   4   5   6   7   8   9  10  11  12  13
    parameter   (x)                     (x)                             64 pages
    guest               [x   x]                                         16 pages
    guest                                           [x   x]             32 pages
    """
    return lap(14, Life(64, (0, 6)), Life(16, (2, 3), (2, 3)), Life(32, (9, 10), (9, 10)))


def test_the_highest_peak_comes_first() -> None:
    # The policy first lowers the peak of 96 pages in stretch 9, and then the peak of 80 pages in
    # stretch 2. A transfer takes a stretch. After its use in stretch 6, the parameter leaves, and
    # returns in the last stretch, for its use in the next step.
    profile = two_peaks()
    book = open_book(profile, moving(64), 64 * PAGE)
    assert lower_peak(book, gaps(book), 1) == 2
    assert [swap.gap for swap in book.swaps] == [Gap(0, 6, 14), Gap(0, 0, 6)]
    assert int(book.usage.max()) == 64
    plan = policy("tensile").plan(profile, moving(64), 64 * PAGE)
    verify(plan, profile, 64 * PAGE)
    assert [(int(m["boundary"]), int(m["tier"])) for m in plan.moves] == [
        (1, 1),
        (5, 0),
        (7, 1),
        (13, 0),
    ]
    assert (
        plan.notes[0] == "tensors are swapped out in 2 gaps; 2 passes, at most 100% of the tensors"
    )
    found = simulate(profile, policy("tensile"), moving(64), 64 * PAGE)
    assert found.step_seconds == pytest.approx(14)


def test_the_peak_is_lowered_even_if_memory_suffices() -> None:
    room = 200 * PAGE
    plan = policy("tensile").plan(two_peaks(), moving(64), room)
    assert plan.predicted.peak_fast_bytes == 64 * PAGE
    assert not len(policy("g10").plan(two_peaks(), moving(64), room).moves)


def of_two_sizes() -> Profile:
    return lap(
        12,
        Life(16, (0, 9), (0, 9)),
        Life(64, (1, 10), (1, 10)),
        Life(16, (4, 5), (4, 5)),
    )


@pytest.mark.parametrize(("most", "swapped"), [(2, [1, 0]), (1, [1]), (0, [])])
def test_the_largest_tensors_come_first_as_far_as_the_quota_allows(
    most: int, swapped: list[int]
) -> None:
    profile = of_two_sizes()
    book = open_book(profile, moving(80), 96 * PAGE)
    lower_peak(book, gaps(book), most)
    assert [swap.gap.tensor for swap in book.swaps] == swapped


def test_the_passes_end_when_they_gain_little() -> None:
    # A swap lowers the peak by one page of more than ten thousand.
    small = [Life(1, (0, 9), (0, 9)) for _ in range(PASSES_MIN + 20)]
    fixed, guest = Life(10_000, tuple(range(12))), Life(500, (4, 5), (4, 5))
    profile = lap(12, fixed, guest, *small)
    book = open_book(profile, moving(1000), 10_000 * PAGE)
    assert lower_peak(book, gaps(book), len(small)) == PASSES_MIN + 1


def test_a_peak_of_tensors_in_use_is_infeasible() -> None:
    room = 63 * PAGE
    with pytest.raises(SentinelError, match="infeasible as published: swapping tensors does"):
        policy("tensile").plan(two_peaks(), moving(64), room)
    plan = policy("tensile+slow").plan(two_peaks(), moving(64), room)
    verify(plan, two_peaks(), room)
    assert any("stay slow" in note for note in plan.notes)
