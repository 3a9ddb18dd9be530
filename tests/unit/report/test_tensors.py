# SPDX-License-Identifier: Apache-2.0
"""The table of tensors."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from sentineld.profile.faults import tensor_faults
from sentineld.profile.trace import profile_of
from sentineld.report.labels import label
from sentineld.report.summary import summary_json, summary_lines
from sentineld.report.tensors import COLUMNS, sort_rows, tensor_rows
from tests.unit.traces import recorded
from tests.unit.trainer import PAGE

TRACE = recorded()
PROFILE = profile_of(TRACE)
LABELS = label(TRACE, PROFILE)
ROWS = tensor_rows(PROFILE, LABELS)


def test_bytes_and_accesses_add_up() -> None:
    assert sum(row.bytes_read for row in ROWS) == int(PROFILE.accesses["bytes_read"].sum())
    assert sum(row.bytes_written for row in ROWS) == int(PROFILE.accesses["bytes_written"].sum())
    assert sum(row.page_accesses for row in ROWS) == int(PROFILE.accesses["page_accesses"].sum())


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
    # One of the two steps has a hint fault and a major fault. The hint fault is not also counted as
    # a first touch.
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
