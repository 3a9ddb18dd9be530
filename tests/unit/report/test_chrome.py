# SPDX-License-Identifier: Apache-2.0
"""Chrome trace events: layers, lifetimes and counters."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from sentineld.report.chrome import TENSORS_PID_OFFSET
from sentineld.report.labels import phases
from tests.unit.report.exporting import LABELS, PID, PROFILE, TRACE, exporter


def slices(events: list[dict[str, Any]], pid: int) -> dict[int, list[dict[str, Any]]]:
    found = defaultdict(list)
    for event in events:
        if event["ph"] == "X" and event["pid"] == pid:
            found[event["tid"]].append(event)
    return found


def names(events: list[dict[str, Any]]) -> dict[tuple[int, int], str]:
    return {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in events
        if event["ph"] == "M" and event["name"] == "thread_name"
    }


def test_layers_follow_each_other_without_gaps(tmp_path: Path) -> None:
    events = list(exporter().events())
    threads = names(events)
    (layers,) = [
        rows
        for tid, rows in slices(events, PID).items()
        if threads[PID, tid] == "sentineld: layers"
    ]
    ends = [round(event["ts"] + event["dur"], 3) for event in layers]
    steps = [(step.end_ns - int(step.records["time_ns"][0])) / 1000 for step in TRACE.steps]
    # These steps are consecutive, so their layers are consecutive, too.
    assert [event["ts"] for event in layers[1:]] == pytest.approx(ends[:-1], abs=0.01)
    assert sum(event["dur"] for event in layers) == pytest.approx(sum(steps), rel=1e-3)
    assert {event["cat"] for event in layers} == {phase.name for phase in phases(PROFILE)}
    assert "0.gate forward" in {event["name"] for event in layers}
    assert not any("cut" in event["name"] for event in layers)


def test_lifetimes_in_a_lane_do_not_overlap() -> None:
    events = list(exporter().events())
    threads = names(events)
    lanes = slices(events, PID + TENSORS_PID_OFFSET)
    assert lanes
    for tid, lives in lanes.items():
        kind = threads[PID + TENSORS_PID_OFFSET, tid].rsplit(" ", 1)[0]
        assert {life["cat"] for life in lives} == {kind}
        lives.sort(key=lambda life: life["ts"])
        for one, other in pairwise(lives):
            assert one["ts"] + one["dur"] <= other["ts"] + 0.002
    shown = {life["name"] for lives in lanes.values() for life in lives}
    assert shown == set(LABELS.names)


def test_the_counter_reaches_the_peak() -> None:
    totals = [sum(event["args"].values()) for event in exporter().events() if event["ph"] == "C"]
    assert max(totals) == PROFILE.peak_bytes


def test_only_the_largest_tensors_are_exported_on_request() -> None:
    events = list(exporter(3).events())
    shown = {
        life["name"]
        for lives in slices(events, PID + TENSORS_PID_OFFSET).values()
        for life in lives
    }
    assert len(shown) == 3
    assert not slices(list(exporter(0).events()), PID + TENSORS_PID_OFFSET)
