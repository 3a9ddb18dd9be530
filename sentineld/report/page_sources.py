# SPDX-License-Identifier: Apache-2.0
"""The contents of report pages: from a trace, or from the live plan of a session."""

from __future__ import annotations

from collections.abc import Mapping

from sentineld.base.units import format_bytes
from sentineld.model.plan import Plan
from sentineld.model.profile import Profile
from sentineld.model.records import TensorName
from sentineld.profile.faults import tensor_faults
from sentineld.profile.trace import Trace
from sentineld.report.boxes import recorded_boxes
from sentineld.report.heatmap import heatmap
from sentineld.report.labels import Labels, label, label_tensors
from sentineld.report.page_data import MAP_ROWS, Report

Facts = list[tuple[str, str]]


def trace_report(trace: Trace, profile: Profile, title: str, plan: Plan | None = None) -> Report:
    """The page of a trace. Raises SentinelError.

    profile: the trace's profile.
    plan: a plan made from the profile, or None.
    """
    labels, heat = label(trace, profile), heatmap(trace, MAP_ROWS)
    facts = trace.facts
    known = [(name, str(facts[name])) for name in ("pid", "torch", "kernel") if name in facts]
    return Report(
        title=title,
        facts=[*known, *_profile_facts(profile, labels), *_plan_facts(plan)],
        notes=[*map(str, facts.get("notes", [])), *_plan_notes(plan)],
        profile=profile,
        labels=labels,
        faults=tensor_faults(trace),
        recorded=(heat, recorded_boxes(trace, heat.axis)),
        plan=plan,
    )


def plan_report(
    plan: Plan, profile: Profile, names: Mapping[int, TensorName], title: str
) -> Report:
    """The page of a session's live plan. names: of persistent tensors, by address."""
    labels = label_tensors(profile, names)
    return Report(
        title=title,
        facts=[*_profile_facts(profile, labels), *_plan_facts(plan)],
        notes=_plan_notes(plan),
        profile=profile,
        labels=labels,
        plan=plan,
    )


def _profile_facts(profile: Profile, labels: Labels) -> Facts:
    persistent = int((profile.tensors["slot"] < 0).sum())
    layers = {int(layer) for layer in profile.stretches["layer"]} - {0}
    return [
        ("step", f"{profile.step_ns / 1e9:.3f} s"),
        ("peak of live tensors", format_bytes(profile.peak_bytes)),
        ("tensors", f"{len(labels.names)}, {persistent} of them across steps"),
        ("layers", f"{len(layers)} in {profile.stretch_count} stretches"),
        ("accesses from", profile.source.replace("+", " and ")),
    ]


def _plan_facts(plan: Plan | None) -> Facts:
    if plan is None:
        return []
    expected = plan.predicted
    return [
        ("policy", plan.policy),
        ("budget", format_bytes(plan.budget_bytes)),
        ("predicted step", f"{expected.step_ns / 1e9:.3f} s"),
        ("predicted fast share", f"{expected.fast_share:.1%}"),
        ("fast peak", format_bytes(expected.peak_fast_bytes)),
        ("moved to fast", f"{format_bytes(expected.promoted_bytes)} per step"),
        ("moved to slow", f"{format_bytes(expected.demoted_bytes)} per step"),
    ]


def _plan_notes(plan: Plan | None) -> list[str]:
    return [] if plan is None else list(plan.notes)
