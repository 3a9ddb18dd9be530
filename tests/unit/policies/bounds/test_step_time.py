# SPDX-License-Identifier: Apache-2.0
"""The step-time bound, checked by hand."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from sentineld.base.errors import SentinelError
from sentineld.policies.bounds import step_time
from sentineld.policies.bounds.step_time import bound_seconds
from sentineld.policies.lp.problem import Solution
from sentineld.policies.lp.program import solve
from tests.unit.plan.toys import LARGE, PAGE, large_profile
from tests.unit.policies.tiering import tiers

PAGE_S = 0.75 * PAGE / 1e9
"""Extra seconds when a slow page is read completely and half of it is written: 0.375 ns for each
byte read, 0.75 ns for each byte written."""


def bound(pages: int, pages_per_s: float) -> float:
    return bound_seconds(large_profile(), tiers(pages_per_s), pages * LARGE * PAGE) - 4.0


def test_with_room_for_everything_no_time_is_added() -> None:
    assert bound(12, 0.0) == 0.0


def test_without_moves_the_bound_is_the_best_placement() -> None:
    # Each page of toy_profile() is a unit of 64 pages here. The units have 19 uses: activation 2 x
    # 2, scratch 1, gradient 2 x 2, state 4, parameter 2 x 3. With four fast units, the parameter is
    # fast for the whole step. Activation and gradient are both alive in stretch 2, so one of them
    # is slow (4 uses). The state is slow, too (4 uses).
    assert bound(4, 0.0) == pytest.approx(8 * LARGE * PAGE_S, rel=2e-3)
    # With two fast units, a unit of the parameter serves 3 uses, in stretches 1, 2 and 3. A unit
    # that the gradient and the scratch share serves 3 uses, too: the gradient's in stretches 2 and
    # 3, and the scratch's in stretch 0.
    assert bound(2, 0.0) == pytest.approx((19 - 6) * LARGE * PAGE_S, rel=2e-3)
    assert bound(0, 0.0) == pytest.approx(19 * LARGE * PAGE_S, rel=2e-3)


def test_moves_shorten_the_step_up_to_their_bandwidth() -> None:
    # With two fast units of 64 pages, 3 uses of units can be fast in stretch 0: the activation's 2
    # and, after its demotion, the scratch's 1. The other stretches have 2, 6 and 8 uses. In each of
    # them, 2 uses can be fast.
    slow, some, many = (bound(2, rate) for rate in (0.0, LARGE / 2, 100.0 * LARGE))
    assert slow == pytest.approx((19 - 6) * LARGE * PAGE_S, rel=2e-3)
    assert many == pytest.approx((19 - 3 - 2 - 2 - 2) * LARGE * PAGE_S, rel=2e-3)
    assert many < some < slow


@pytest.mark.parametrize("solved", [0, 1])
def test_the_bound_of_the_last_solved_program_holds(
    solved: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # bound_seconds() solves one program after another, with more and more positions at which groups
    # may change their tiers. Here, the first program has no such position, so its dual prices give
    # a weak bound.
    asked: list[int] = []

    def solve_some(*arguments: object) -> Solution | None:
        asked.append(1)
        return solve(*arguments) if len(asked) <= solved else None  # type: ignore[arg-type]

    monkeypatch.setattr(step_time, "solve", solve_some)
    monkeypatch.setattr(step_time, "GAP", 0.0)
    monkeypatch.setattr(
        step_time,
        "changes_of",
        lambda groups, generous: [np.zeros(0, np.int64)] * len(groups.pages),
    )
    if not solved:
        with pytest.raises(SentinelError, match="was not solved"):
            bound(2, 100.0 * LARGE)
        return
    found = bound(2, 100.0 * LARGE)
    monkeypatch.undo()
    assert len(asked) == 2
    assert 0.0 <= found <= bound(2, 100.0 * LARGE)


def test_without_scipy_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(SentinelError, match="needs scipy") as error:
        bound(4, 1.0)
    assert error.value.hint == "apt install python3-scipy"
