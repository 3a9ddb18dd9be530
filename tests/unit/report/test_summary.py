# SPDX-License-Identifier: Apache-2.0
"""The summary of a trace."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np

from sentineld.model.records import ACCESS_UNKNOWN
from sentineld.profile.trace import profile_of
from sentineld.report.labels import KINDS, label
from sentineld.report.summary import summary_json, summary_lines
from sentineld.report.tensors import tensor_rows
from tests.unit.traces import recorded
from tests.unit.trainer import HEAP, PAGE

TRACE = recorded()
PROFILE = profile_of(TRACE)
LABELS = label(TRACE, PROFILE)
ROWS = tensor_rows(PROFILE, LABELS)


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
