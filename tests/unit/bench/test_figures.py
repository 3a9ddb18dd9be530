# SPDX-License-Identifier: Apache-2.0
"""bench-profile's arithmetic, goals and tables."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from sentineld.model.records import SAMPLE_DTYPE
from tests.bench import figures
from tests.bench.drain import Ring


def series(*means: float) -> dict[str, Any]:
    return {"mean": list(means), "median": list(means)}


def raw(armed_read: float = 1400, elsewhere: float = 1600) -> dict[str, Any]:
    def unwatched(read: float) -> dict[str, Any]:
        return {
            "zero_page_read": series(read, read + 90, read - 5),
            "zero_filled_write": series(7000),
        }

    daemon = {
        "managed_resident_kib": [40 * 1024, 41 * 1024],
        "managed_seconds": 8.0,
        "managed_user_seconds": 0.2,
        "managed_system_seconds": 4.0,
    }
    return {
        "instructions": {
            "module_absent": unwatched(1500),
            "module_loaded": unwatched(1500),
            "module_idle": unwatched(1530),
            "session_elsewhere": unwatched(elsewhere),
            "armed": {"armed_read": series(armed_read), "armed_write": series(1450)},
            "observers": [
                {
                    "name": "soft_dirty",
                    "plain": 1000,
                    "observed": 1500,
                    "touched_pages": 100,
                    "seen_pages": 50,
                    "epochs": 5,
                    "read_recall": 0.0,
                    "write_recall": 1.0,
                    "writes_seen_as_reads": 0.0,
                    "wrongly_seen": 0,
                },
                {"name": "perf_mem", "missing": "no counters"},
            ],
        },
        "steps": {
            "rounds": [
                {
                    "plain": [2.0, 2.0, 9.0],
                    "profiled": seconds,
                    "managed": [2.0],
                    "metered": [2.5],
                    "daemon": daemon,
                }
                for seconds in (4.0, 5.0, 12.0)
            ],
            "agreement": {"pairs": 400, "seen_share": 0.995, "differences": {"shape_only": 2}},
        },
        "drain": {
            "samples": 100_000,
            "milliseconds": {
                name: figures.spread([1.5, 2.0, 9.0]).to_json()
                for name in ("drain", "join_samples")
            },
        },
    }


def test_a_spread_has_median_least_and_most() -> None:
    assert figures.spread([3.0, 1.0, 100.0]) == figures.Spread(3.0, 1.0, 100.0, 3)


def test_figures_are_medians_of_rounds_relative_to_their_baseline() -> None:
    found = figures.summarise(raw())
    assert found["armed_over_minor_fault"] == pytest.approx(1400 / 1500, abs=1e-4)
    assert found["armed_over_zero_filled_fault"] == pytest.approx(0.2)
    assert found["idle_over_minor_fault"] == pytest.approx(100 / 1500, abs=1e-4)
    assert found["profiled_over_plain_step"] == 2.5
    assert found["metered_over_managed_step"] == 1.25
    assert found["framework_unseen_share"] == pytest.approx(0.005)
    assert found["framework_pairs"] == 400
    assert found["framework_differences"] == {"shape_only": 2}
    assert found["drain_100k_ms"] == 2.0
    assert found["daemon_rss_mib"] == 41.0
    assert found["daemon_user_share_while_managing"] == 0.025
    assert found["daemon_system_share_while_managing"] == 0.5
    assert found["alternatives"]["soft_dirty"]["instructions_per_touched_page"] == 5.0
    assert found["alternatives"]["soft_dirty"]["instructions_per_seen_page"] == 10.0
    assert found["alternatives"]["perf_mem"] == {"available": False, "why": "no counters"}


def test_goals_hold_up_to_and_including_their_limit() -> None:
    assert all(goal["holds"] for goal in figures.summarise(raw())["goals"].values())
    assert figures.summarise(raw(armed_read=1500))["goals"]["armed_over_minor_fault"]["holds"]
    slow = figures.summarise(raw(armed_read=1501, elsewhere=1700))["goals"]
    assert not slow["armed_over_minor_fault"]["holds"]
    assert not slow["idle_over_minor_fault"]["holds"]
    assert slow["drain_100k_ms"]["holds"]


def test_a_partial_run_has_only_its_own_goals() -> None:
    found = figures.summarise({"drain": raw()["drain"]})
    assert list(found["goals"]) == ["drain_100k_ms"]


def test_tables_from_reloaded_json_show_every_series() -> None:
    found = raw(armed_read=1600)
    profile = json.loads(
        json.dumps({**figures.summarise(found), "emulated": figures.EMULATED, "raw": found})
    )
    text = figures.tables(profile)
    assert "armed read (watched process)" in text
    assert "zero page read (another process has a session)" in text
    assert "perf mem: no counters" in text
    assert text.count("NO |") == 1
    for block in text.split("\n\n")[:-1]:
        assert len({len(line) for line in block.strip().splitlines()}) == 1


def test_the_ring_returns_its_samples_across_a_wrap() -> None:
    ring = Ring(4096)
    for _ in range(3):
        rows = np.zeros(3000, SAMPLE_DTYPE)
        rows["page"] = np.arange(3000)
        ring.fill(rows)
        assert (ring.drain() == rows).all()
    assert len(ring.drain()) == 0
