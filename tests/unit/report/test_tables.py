# SPDX-License-Identifier: Apache-2.0
"""Labels, the table of tensors and the summary."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from sentineld.model.profile import Kind
from sentineld.model.records import ACCESS_UNKNOWN, TensorName
from sentineld.profile.faults import tensor_faults
from sentineld.profile.trace import profile_of
from sentineld.report.labels import KINDS, label, layer_label, phases, stretch_places
from sentineld.report.summary import summary_json, summary_lines
from sentineld.report.tensors import COLUMNS, sort_rows, tensor_rows
from tests.unit.traces import SMALL, WEIGHTS, recorded
from tests.unit.trainer import HEAP, PAGE

TRACE = recorded()
PROFILE = profile_of(TRACE)
LABELS = label(TRACE, PROFILE)
ROWS = tensor_rows(PROFILE, LABELS)


def test_parameters_have_the_framework_s_names() -> None:
    named = {row.name: row for row in ROWS if row.kind == "parameter"}
    assert len(named) == WEIGHTS
    assert named["1.weight2"].bytes == SMALL.weight_bytes
    # Optimizer state has no name here and is labelled by its address.
    states = [row for row in ROWS if row.kind == "persistent"]
    assert len(states) == 2 * WEIGHTS
    assert all(row.name.startswith("at 0x") for row in states)


def test_other_tensors_are_named_by_the_layer_of_their_birth() -> None:
    names = [row.name for row in ROWS if row.kind not in ("parameter", "persistent")]
    assert len(set(names)) == len(names)
    assert "0.gate forward #1" in names
    assert "after 0.value forward #1" in names


def test_names_of_reused_addresses_are_ignored() -> None:
    gone = int(np.flatnonzero(PROFILE.tensors["kind"] == Kind.SCRATCH)[0])
    address = int(PROFILE.tensors["address"][gone])
    names = {address: TensorName("gradient", "w")}
    assert label(replace(TRACE, names=names), PROFILE).names[gone] == LABELS.names[gone]


def test_gradients_across_the_step_s_end_are_named() -> None:
    wrapping = np.flatnonzero(PROFILE.tensors["wraps"])
    address = int(PROFILE.tensors["address"][wrapping[0]])
    labels = label(replace(TRACE, names={address: TensorName("gradient", "w")}), PROFILE)
    assert labels.names[wrapping[0]] == "w (gradient)"
    assert labels.kind(int(wrapping[0])) == "gradient"


def test_phases_cover_the_step() -> None:
    found = phases(PROFILE)
    assert [phase.name for phase in found] == ["begin", "forward", "backward", "optimizer"]
    assert [phase.first for phase in found[1:]] == [phase.past for phase in found[:-1]]
    assert (found[0].first, found[-1].past) == (0, PROFILE.stretch_count)


def test_cuts_have_their_layer_s_name() -> None:
    places = stretch_places(PROFILE)
    cuts = [place for place in places if ", cut " in place]
    assert len(cuts) == len(TRACE.cuts)
    assert all("forward" in place or "backward" in place for place in cuts)


def test_long_names_of_layers_keep_their_end() -> None:
    layers = tuple(f"a.long.path.to.{name}" for name in PROFILE.layers)
    shown = [layer_label(replace(PROFILE, layers=layers), at, 12) for at in range(5)]
    assert all(len(name) <= 12 for name in shown)
    assert any(name.endswith("0.gate") for name in shown)


def test_bytes_and_accesses_add_up() -> None:
    assert sum(row.bytes_read for row in ROWS) == int(PROFILE.accesses["bytes_read"].sum())
    assert sum(row.bytes_written for row in ROWS) == int(PROFILE.accesses["bytes_written"].sum())
    assert sum(row.page_accesses for row in ROWS) == int(PROFILE.accesses["pages"].sum())


def test_lifetimes_in_boundaries_and_layers() -> None:
    by_name = {row.name: row for row in ROWS}
    weight, scratch = by_name["0.weight0"], by_name["after 0.value forward #1"]
    assert weight.boundaries == PROFILE.stretch_count
    assert weight.layers == len(np.unique(PROFILE.stretches["layer"]))
    assert (scratch.boundaries, scratch.layers) == (1, 1)
    assert (scratch.bytes_read, scratch.bytes_written) == (16 * PAGE, 16 * PAGE)
    assert scratch.hotness == 2.0
    wrapping = ROWS[int(np.flatnonzero(PROFILE.tensors["wraps"])[0])]
    assert 1 < wrapping.boundaries < PROFILE.stretch_count


@pytest.mark.parametrize("column", COLUMNS)
def test_every_column_sorts(column: str) -> None:
    rows = sort_rows(ROWS, column)
    assert sorted(row.tensor for row in rows) == list(range(len(ROWS)))
    assert sort_rows(ROWS, column, reverse=True) == rows[::-1]
    key = {
        "bytes": "bytes",
        "boundaries": "boundaries",
        "layers": "layers",
        "reads": "bytes_read",
        "writes": "bytes_written",
        "pages": "page_accesses",
        "hotness": "hotness",
    }.get(column)
    if key is not None:
        values = [getattr(row, key) for row in rows]
        assert values == sorted(values, reverse=True)


def test_a_row_is_json() -> None:
    row = json.loads(json.dumps(sort_rows(ROWS, "hotness")[0].to_json()))
    assert row["hotness"] == max(round(one.hotness, 3) for one in ROWS)


def test_recorded_faults_are_shown() -> None:
    rows = tensor_rows(PROFILE, LABELS, tensor_faults(TRACE))
    faulted = sort_rows(rows, "faults")[:2]
    assert {row.name: row.fault_count for row in faulted} == {"0.weight0": 0.5, "0.weight1": 0.5}
    # One fault of each class in one of two steps; the hint fault is not also a first touch.
    assert {row.name: row.to_json()["faults"]["hint"] for row in faulted} == {
        "0.weight0": 0.5,
        "0.weight1": 0.0,
    }
    assert ROWS[0].to_json()["faults"] is None
    said = "1 page faults on tensors in a step that was not slowed (0.5 major, 0.5 hint), 0 else"
    assert said in "\n".join(summary_lines(TRACE))
    unknown = replace(TRACE, facts={**TRACE.facts, "faults_recorded": False})
    assert summary_json(unknown)["faults"] is None
    assert "page faults" not in "\n".join(summary_lines(unknown))


def test_the_contents_of_the_summary() -> None:
    values = json.loads(json.dumps(summary_json(TRACE)))
    assert values["steps"] == 2
    assert values["stretches"] == PROFILE.stretch_count
    assert set(values["tensors"]) == set(KINDS)
    assert sum(kind["count"] for kind in values["tensors"].values()) == len(ROWS)
    assert values["peak_bytes"] == PROFILE.peak_bytes
    assert values["coverage"]["attributed_share"] == 1.0
    text = "\n".join(summary_lines(TRACE))
    assert "process 4242, not managed; torch 2.6.0, kernel 6.12" in text
    assert "9 parameter (288.0 KiB)" in text
    assert "100.00% attributed to live tensors" in text
    assert "note: a note" in text


def test_the_summary_counts_unknown_pages() -> None:
    samples = TRACE.samples[:2].copy()
    samples["flags"] = ACCESS_UNKNOWN
    samples["more_pages"] = 9
    samples["page"] = HEAP // PAGE + np.array([0, 5])
    samples["epoch"] = TRACE.access_step.end_epoch - 1
    trace = replace(TRACE, samples=np.concatenate([TRACE.samples[:50], samples]))
    assert summary_json(trace)["unknown_pages"] == 15
    assert "15 more pages x stretches are unknown" in "\n".join(summary_lines(trace))


def test_the_summary_lists_unattributed_accesses() -> None:
    samples = TRACE.samples.copy()
    samples["page"][:5] = HEAP // PAGE + 100_000 + np.arange(5)
    text = "\n".join(summary_lines(replace(TRACE, samples=samples)))
    assert "unattributed: 5 on 5 pages of the shim's heap: memory of no tensor in this step" in text
