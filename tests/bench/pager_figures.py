# SPDX-License-Identifier: Apache-2.0
"""Evaluates the transfers that bench-pager has measured: computes ratios, checks the goals, and
formats both as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sentineld.model.records import PAGE_BYTES
from tests.bench.figures import spread, table
from tests.bench.goals import at_least, at_most, goal_lines

Json = dict[str, Any]

SPEED_MIN = 0.90
"""Lower limit for the pager's speed divided by the speed of plain direct I/O."""
CPU_SHARE_MAX = 0.15
"""Largest share of one CPU that the pager may use while it transfers."""


def summarise(rounds: Sequence[dict[str, Json]], transfer_bytes: int) -> Json:
    """Return the figures of each transfer, and the goals.

    rounds: {transfer: {"plain" or "pager": {"seconds", "cpu_seconds"}}} for each round.
    transfer_bytes: bytes that one transfer writes and reads, in total.
    """
    transfers = {}
    goals = {}
    pages = transfer_bytes / PAGE_BYTES
    for name in rounds[0]:
        pairs = [one[name] for one in rounds]
        figures = {
            "plain_bytes_per_s": [transfer_bytes / one["plain"]["seconds"] for one in pairs],
            "pager_bytes_per_s": [transfer_bytes / one["pager"]["seconds"] for one in pairs],
            "speed": [one["plain"]["seconds"] / one["pager"]["seconds"] for one in pairs],
            "plain_cpu_share": [
                one["plain"]["cpu_seconds"] / one["plain"]["seconds"] for one in pairs
            ],
            "cpu_share": [one["pager"]["cpu_seconds"] / one["pager"]["seconds"] for one in pairs],
            "cpu_us_per_page": [one["pager"]["cpu_seconds"] / pages * 1e6 for one in pairs],
        }
        transfers[name] = {key: spread(values).to_json() for key, values in figures.items()}
        goals[f"{name}_speed"] = at_least(transfers[name]["speed"]["median"], SPEED_MIN)
        goals[f"{name}_cpu_share"] = at_most(transfers[name]["cpu_share"]["median"], CPU_SHARE_MAX)
    return {"transfers": transfers, "goals": goals}


def text(found: Json) -> str:
    """Format the figures and the goals."""
    head = (
        "transfer",
        "plain GB/s",
        "pager GB/s",
        "pager / plain",
        "plain: of a CPU",
        "pager: of a CPU",
        "pager: µs a page",
    )
    rows = []
    for name, one in found["transfers"].items():
        speed = one["speed"]
        rows.append(
            (
                name,
                f"{one['plain_bytes_per_s']['median'] / 1e9:.2f}",
                f"{one['pager_bytes_per_s']['median'] / 1e9:.2f}",
                f"{speed['median']:.3f} ({speed['least']:.3f} to {speed['most']:.3f})",
                f"{one['plain_cpu_share']['median']:.3f}",
                f"{one['cpu_share']['median']:.3f}",
                f"{one['cpu_us_per_page']['median']:.2f}",
            )
        )
    return "\n".join([table(head, rows), "", *goal_lines(found["goals"])])
