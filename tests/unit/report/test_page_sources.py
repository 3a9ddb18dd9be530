# SPDX-License-Identifier: Apache-2.0
"""The contents of report pages: facts, notes, and the names of tensors."""

from __future__ import annotations

from dataclasses import replace

from sentineld.base.units import format_bytes
from sentineld.model.records import TensorName
from sentineld.profile.trace import profile_of
from sentineld.report.page_sources import plan_report, trace_report
from tests.unit.plan.toys import HEAP, PAGE, toy_plan, toy_profile
from tests.unit.traces import recorded

TRACE = recorded()


def test_a_trace_has_its_process_and_its_step() -> None:
    report = trace_report(TRACE, profile_of(TRACE), "a trace")
    facts = dict(report.facts)
    assert (facts["pid"], facts["torch"]) == ("4242", "2.6.0")
    assert facts["peak of live tensors"] == format_bytes(profile_of(TRACE).peak_bytes)
    assert "policy" not in facts
    assert report.notes == ["a note"]
    assert report.recorded is not None


def test_a_plan_has_its_prediction_and_the_given_names() -> None:
    plan = replace(toy_plan(), notes=("a remark",))
    names = {HEAP + 4 * PAGE: TensorName("parameter", "block.weight")}
    report = plan_report(plan, toy_profile(), names, "a plan")
    facts = dict(report.facts)
    assert (facts["policy"], facts["budget"]) == ("by hand", "28.0 KiB")
    assert report.notes == ["a remark"]
    assert report.labels.names[4] == "block.weight"
    assert report.labels.kind(4) == "parameter"
    assert report.recorded is None
