# SPDX-License-Identifier: Apache-2.0
"""The least time of a step, by hand."""

from __future__ import annotations

import sys

import pytest

from sentineld.errors import SentinelError
from sentineld.plan.fluid import bound_seconds
from sentineld.tiers import Tier, Tiers
from tests.unit.plan.toys import LARGE, PAGE, large_profile

PAGE_S = 0.75 * PAGE / 1e9
"""Read slow and half of it written: 0.375 + 0.75 / 2 ns a byte."""


def tiers(pages_per_s: float) -> Tiers:
    fast, slow = Tier((0,), 0, 8e9, 4e9), Tier((1,), 0, 2e9, 1e9)
    return Tiers((fast, slow), pages_per_s * PAGE, "toy")


def bound(pages: int, pages_per_s: float) -> float:
    return bound_seconds(large_profile(), tiers(pages_per_s), pages * LARGE * PAGE) - 4.0


def test_enough_room_for_everything() -> None:
    assert bound(12, 0.0) == 0.0


def test_without_moves_the_best_placement() -> None:
    # At boundaries: activation 2 (1, 2), gradient 2 (3, 0), state 4 and parameter 2 (all). Used
    # while slow: activation 2 + 2, gradient 2 + 2, state 4 once, parameter 2 three times.
    # Four pages: parameter all the step, activation and gradient take turns: the state's 4 are
    # slow.
    assert bound(4, 0.0) == pytest.approx(4 * LARGE * PAGE_S, rel=2e-3)
    # Two: activation and gradient gain 8 together, the parameter 6.
    assert bound(2, 0.0) == pytest.approx((4 + 6) * LARGE * PAGE_S, rel=2e-3)
    # Nothing at all: only the scratch, which meets no boundary, is free.
    assert bound(0, 0.0) == pytest.approx(18 * LARGE * PAGE_S, rel=2e-3)


def test_moves_help_as_far_as_they_go() -> None:
    # Two pages fast at each boundary, and births: the parameter in 1, one of activation and
    # parameter in 2, the gradient at its birth, two of the eight pages that 3 uses.
    slow, some, many = (bound(2, rate) for rate in (0.0, LARGE / 2, 100.0 * LARGE))
    assert slow == pytest.approx(10 * LARGE * PAGE_S, rel=2e-3)
    assert many == pytest.approx(8 * LARGE * PAGE_S, rel=2e-3)
    assert many < some < slow


def test_without_scipy_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(SentinelError, match="needs scipy") as error:
        bound(4, 1.0)
    assert error.value.hint == "apt install python3-scipy"
