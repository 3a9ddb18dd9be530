# SPDX-License-Identifier: Apache-2.0
"""Goals of a benchmark: a value, its limit, and whether the value meets the limit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Json = dict[str, Any]


def at_most(value: float, limit: float) -> Json:
    """A goal for a value that must not exceed the limit."""
    return {"value": round(value, 5), "limit": limit, "holds": bool(value <= limit)}


def at_least(value: float, limit: float) -> Json:
    """A goal for a value that must reach the limit."""
    return {"value": round(value, 5), "at_least": limit, "holds": bool(value >= limit)}


def goal_lines(goals: Mapping[str, Json]) -> Iterable[str]:
    """A line of text for each goal."""
    for name, goal in goals.items():
        limit = f"at least {goal['at_least']}" if "at_least" in goal else f"limit {goal['limit']}"
        mark = "holds" if goal["holds"] else "FAILS"
        yield f"{mark}  {name:<42} {goal['value']:.4f}  ({limit})"
