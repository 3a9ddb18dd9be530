# SPDX-License-Identifier: Apache-2.0
"""Curves with chosen values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sentineld.advise.curve import Curves, Point
from sentineld.advise.machines import Machine
from sentineld.base.errors import SentinelError
from sentineld.host.presets import preset_tiers
from tests.unit.plan.toys import toy_profile

PEAK_BYTES = 1000 << 20
SIZES = tuple(PEAK_BYTES * tenth // 10 for tenth in range(1, 6))


def points(name: str, slowdowns: Sequence[float | None], trainings: int = 1) -> list[Point]:
    """Points of a curve at budgets of 10%, 20%, ... of the peak. A slowdown of None means
    that no plan is feasible at that budget."""
    missing = SentinelError("failed", "infeasible", "")
    return [
        Point(name, size, trainings, value, error=missing if value is None else None)
        for size, value in zip(SIZES, slowdowns, strict=False)
    ]


def curves_of(
    alone: Mapping[str, Sequence[float | None]],
    shared: Mapping[str, Sequence[float | None]] | None = None,
) -> Curves:
    """Curves of machines that are named after their presets. alone, shared: the slowdowns for
    each preset if one training uses the machine, and if two trainings use it."""
    found = Curves(
        replace(toy_profile(), peak_bytes=PEAK_BYTES),
        "auto",
        tuple(Machine(name, preset_tiers(name, 1), 1) for name in alone),
        SIZES,
        1 if shared is None else 2,
    )
    for trainings, values in enumerate((alone, shared or {}), 1):
        for name, slowdowns in values.items():
            for point in points(name, slowdowns, trainings):
                found.add(point)
    return found
