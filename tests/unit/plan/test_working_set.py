# SPDX-License-Identifier: Apache-2.0
"""The working set of each stretch."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from sentineld.plan.working_set import streamed_note, working_set_pages
from tests.unit.plan.toys import PAGE, toy_profile
from tests.unit.policies.rivals.laps import Life, lap


def test_the_working_set_is_what_a_stretch_uses_at_one_moment() -> None:
    # Stretch 0 uses the activation and the scratch; stretch 1, the parameter; stretch 2, the
    # activation, the gradient and the parameter; stretch 3, the gradient, the state and the
    # parameter.
    assert working_set_pages(toy_profile()).tolist() == [3, 2, 6, 8]


def test_tensors_that_are_not_alive_together_do_not_add_up() -> None:
    # Only in stretch 1 are both tensors alive, but stretch 1 does not use the first tensor.
    profile = lap(3, Life(10, (0,), (0, 1)), Life(7, (1, 2), (1, 2)))
    assert working_set_pages(profile).tolist() == [10, 7, 7]


def test_the_note_names_the_stretch_that_exceeds_the_budget_most() -> None:
    assert streamed_note(toy_profile(), 8 * PAGE) == ()
    (note,) = streamed_note(toy_profile(), 5 * PAGE)
    assert note == (
        "2 stretches use more memory at once than the budget; the largest excess is 12.0 KiB, "
        "in stretch 3. In such stretches, pages are evicted to make room for others, and faults "
        "fetch them again"
    )
    (note,) = streamed_note(lap(2, Life(10, (1,))), 4 * PAGE)
    assert note.startswith("1 stretch uses more memory")
    assert "24.0 KiB, in stretch 1 (layer1)" in note


def test_the_note_names_no_layer_if_the_names_are_unknown() -> None:
    (note,) = streamed_note(replace(toy_profile(), layers=()), 5 * PAGE)
    assert "12.0 KiB, in stretch 3. In" in note


@given(st.integers(1, 5), st.integers(1, 100))
def test_a_budget_of_the_working_set_gives_no_note(stretches: int, pages: int) -> None:
    profile = lap(stretches, Life(pages, tuple(range(stretches))))
    assert working_set_pages(profile).tolist() == [pages] * stretches
    assert streamed_note(profile, pages * PAGE) == ()
    assert streamed_note(profile, pages * PAGE - 1)
