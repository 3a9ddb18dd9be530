# SPDX-License-Identifier: Apache-2.0
"""bench-pager's figures."""

from __future__ import annotations

from typing import Any

from tests.bench.pager_figures import summarise, text

Json = dict[str, Any]


def one(plain_s: float, pager_s: float, cpu_s: float) -> Json:
    return {
        "plain": {"seconds": plain_s, "cpu_seconds": 0.01},
        "pager": {"seconds": pager_s, "cpu_seconds": cpu_s},
    }


ROUNDS = [
    {"write": one(1.0, 1.0, 0.10), "both": one(1.0, 1.25, 0.25)},
    {"write": one(1.0, 2.0, 0.25), "both": one(1.0, 1.25, 0.25)},
    {"write": one(2.0, 2.0, 0.24), "both": one(1.0, 1.25, 0.25)},
]


def test_figures_are_medians_of_the_rounds() -> None:
    found = summarise(ROUNDS, 4096 * 1_000_000)
    write = found["transfers"]["write"]
    assert write["speed"]["median"] == 1.0
    assert write["speed"]["least"] == 0.5
    assert write["cpu_share"]["median"] == 0.12
    assert write["cpu_us_per_page"]["median"] == 0.24
    assert write["pager_bytes_per_s"]["median"] == 2048e6


def test_goals() -> None:
    found = summarise(ROUNDS, 1 << 30)
    assert {name: goal["holds"] for name, goal in found["goals"].items()} == {
        "write_speed": True,
        "write_cpu_share": True,
        "both_speed": False,
        "both_cpu_share": False,
    }
    assert "0.800 (0.800 to 0.800)" in text(found)
