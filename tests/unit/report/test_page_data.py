# SPDX-License-Identifier: Apache-2.0
"""A report page shows the same figures as the reports in the terminal."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sentineld.model.records import TensorName
from sentineld.profile.faults import tensor_faults
from sentineld.profile.trace import profile_of
from sentineld.report import page_data as pages
from sentineld.report.heatmap import heatmap
from sentineld.report.labels import KINDS, label
from sentineld.report.page_data import MAP_ROWS, NAME_CHARACTERS_MAX, page_data
from sentineld.report.page_sources import plan_report, trace_report
from sentineld.report.tensors import tensor_rows
from sentineld.report.timeline import timeline
from tests.unit.plan.toys import PAGE, late_plan, toy_plan, toy_profile
from tests.unit.report.pages import unpacked
from tests.unit.traces import recorded

TRACE = recorded()
PROFILE = profile_of(TRACE)
LABELS = label(TRACE, PROFILE)
PLAN = late_plan(replace(toy_plan(), reasons=("one", "two", "one", "three", "one")))


def recorded_page() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(
        json.dumps(page_data(trace_report(TRACE, PROFILE, "a trace")), allow_nan=False)
    )
    return data


def planned_page() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(
        json.dumps(page_data(plan_report(PLAN, toy_profile(), {}, "a plan")), allow_nan=False)
    )
    return data


def test_the_timeline_is_that_of_the_report() -> None:
    data, line = recorded_page(), timeline(PROFILE, LABELS)
    (found,) = data["timelines"]
    assert found["group"] == "kind"
    assert found["peak_bytes"] == PROFILE.peak_bytes
    for series in found["series"]:
        values = unpacked(series["bytes"])
        live = line.live[KINDS.index(series["name"])]
        assert values.tolist() == [*live.tolist(), live[-1]]
        assert series["max_bytes"] == live.max()
    assert unpacked(found["times_ms"])[-1] == pytest.approx(line.times_ns[-1] / 1e6)


def test_the_map_is_that_of_the_report() -> None:
    heat = heatmap(TRACE, MAP_ROWS)
    (found,) = recorded_page()["maps"]
    shape = (found["rows"], len(unpacked(found["columns"])))
    assert shape == heat.live.shape
    accessed = unpacked(found["accessed"]).reshape(shape)
    assert np.array_equal(accessed > 0, heat.accessed > 0)
    assert accessed.max() == 255
    assert np.array_equal(unpacked(found["cells"]).reshape(shape) > 0, heat.live > 0)
    boxes = {name: unpacked(values) for name, values in found["boxes"].items()}
    assert boxes["past"].max() <= found["pages"] == heat.axis.pages
    assert (boxes["begin"] < boxes["past"]).all()
    assert set(boxes["tensor"].tolist()) == set(range(len(PROFILE.tensors)))


def test_a_step_with_many_stretches_has_fewer_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "MAP_COLUMNS", 7)
    (found,) = recorded_page()["maps"]
    columns = unpacked(found["columns"])
    assert len(columns) == 7
    assert columns[0] == 0
    accessed = unpacked(found["accessed"]).reshape(found["rows"], 7)
    whole = heatmap(TRACE, MAP_ROWS).accessed[:, : columns[1]]
    assert np.array_equal(accessed[:, 0] > 0, whole.max(axis=1) > 0)


def test_the_table_is_that_of_the_report() -> None:
    data = recorded_page()
    rows, table = tensor_rows(PROFILE, LABELS, tensor_faults(TRACE)), data["tensors"]
    assert table["name"] == [row.name for row in rows]
    assert unpacked(table["bytes"]).tolist() == [row.bytes for row in rows]
    assert [KINDS[kind] for kind in unpacked(table["kind"])] == [row.kind for row in rows]
    assert unpacked(table["read"]).tolist() == [row.bytes_read for row in rows]
    assert unpacked(table["faults"]).tolist() == [row.fault_count for row in rows]
    born = [data["places"][at] if at >= 0 else "" for at in unpacked(table["born"])]
    assert born == [row.born for row in rows]
    assert data["omitted"] == 0


def test_only_the_largest_tensors_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "TENSORS_MAX", 5)
    data = recorded_page()
    sizes = sorted((row.bytes for row in tensor_rows(PROFILE, LABELS)), reverse=True)
    assert sorted(unpacked(data["tensors"]["bytes"]).tolist(), reverse=True) == sizes[:5]
    assert data["omitted"] == len(sizes) - 5
    assert set(unpacked(data["maps"][0]["boxes"]["tensor"]).tolist()) <= set(range(5))


def test_long_names_are_shortened_in_the_middle() -> None:
    address = next(iter(TRACE.names))
    names = {**TRACE.names, address: TensorName("parameter", "a" * 2000 + "z")}
    trace = replace(TRACE, names=names)
    data = page_data(trace_report(trace, PROFILE, "a trace"))
    (name,) = [name for name in data["tensors"]["name"] if name.startswith("aaa")]
    assert len(name) == NAME_CHARACTERS_MAX + 1
    assert name.endswith("aaz")


def test_a_page_of_a_trace_has_no_plan() -> None:
    data = recorded_page()
    assert data["plan"] is None
    assert "reasons" not in data["tensors"]
    assert dict(data["facts"])["pid"] == "4242"
    assert data["notes"] == ["a note"]


def test_a_page_of_a_plan_has_tiers_moves_and_reasons() -> None:
    data = planned_page()
    assert [line["group"] for line in data["timelines"]] == ["kind", "tier"]
    tiers = {line["name"]: line for line in data["timelines"][1]["series"]}
    assert tiers.keys() == {"fast", "slow"}
    assert tiers["fast"]["max_bytes"] <= PLAN.budget_bytes == data["plan"]["budget_bytes"]
    assert unpacked(data["plan"]["up_bytes"]).tolist() == [0, 0, 2 * PAGE, 0]
    assert unpacked(data["plan"]["late_bytes"]).tolist() == [0, 0, 2 * PAGE, 0]
    table = data["tensors"]
    assert [table["reasons"][at] for at in unpacked(table["reason"])] == list(PLAN.reasons)
    assert unpacked(table["moves"]).tolist() == [0, 0, 0, 2, 0]
    assert unpacked(table["fast"]).tolist() == [1, 1, 0, 0.25, 1]
    moves = {name: unpacked(values) for name, values in data["plan"]["moves"].items()}
    assert moves["tensor"].tolist() == [3, 3]
    assert moves["deadline"].tolist() == [1, 3]


def test_cells_of_a_plan_have_tier_and_moves() -> None:
    (found,) = planned_page()["maps"]
    assert found["name"] == "planned"
    cells = unpacked(found["cells"]).reshape(found["rows"], 4)
    fast, slow = 1 + pages.FAST_LEVELS, 1
    # The demotion of the state's first page begins at boundary 0, its promotion at boundary 2.
    assert cells[0].tolist() == [fast | pages.DOWN_CELL, slow, slow | pages.UP_CELL, fast]
    assert cells[4].tolist() == [fast] * 4  # the parameter
    assert cells[6].tolist() == [fast, 0, 0, 0]  # the scratch tensor
