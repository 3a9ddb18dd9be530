# SPDX-License-Identifier: Apache-2.0
"""The geometric means that bench-noise computes from its rows."""

from __future__ import annotations

import pytest

from tests.bench.noise import summary


def row(bound: float, quiet: float, noisy: list[float], drawn: list[float]) -> dict[str, object]:
    return {
        "bound_seconds": bound,
        "step_seconds": quiet,
        "noisy_seconds": noisy,
        "drawn_seconds": drawn,
    }


def test_points_are_differences_of_geometric_means() -> None:
    rows = [row(1.0, 1.0, [1.2, 1.4], [0.0, 0.1]), row(2.0, 2.42, [2.42, 2.42], [0.0, 0.0])]
    found = summary(rows)
    assert found["quiet"] == pytest.approx(1.1)
    assert found["noisy"] == pytest.approx((1.3 * 1.21) ** 0.5)
    assert found["paced"] == pytest.approx((1.25 * 1.21) ** 0.5)
    assert found["points"] == pytest.approx(100 * (found["noisy"] - found["quiet"]))
    assert found["paced_points"] == pytest.approx(100 * (found["paced"] - found["quiet"]))


def test_a_summary_without_cells_is_an_error() -> None:
    with pytest.raises(ValueError, match="no cells"):
        summary([])
