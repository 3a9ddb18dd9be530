# SPDX-License-Identifier: Apache-2.0
"""Summary of a trace: steps, tensors and their sizes, page faults, and attributed accesses."""

from __future__ import annotations

from typing import Any

import numpy as np

from sentineld.base.units import format_bytes
from sentineld.profile.coverage import coverage
from sentineld.profile.faults import tensor_faults
from sentineld.profile.sampled_pairs import unknown_pairs
from sentineld.profile.trace import Trace, profile_of
from sentineld.profile.unattributed import unattributed_accesses
from sentineld.report.labels import KINDS, label
from sentineld.report.tensors import faults_json


def summary_json(trace: Trace) -> dict[str, Any]:
    """The summary as JSON values. Raises SentinelError."""
    profile = profile_of(trace)
    labels = label(trace, profile)
    sampled = len(trace.samples) > 0
    faults = tensor_faults(trace)
    sizes = profile.tensors["bytes"].astype(np.int64)
    return {
        "facts": dict(trace.facts),
        "steps": len(trace.steps) - 1,
        "step_ns": profile.step_ns,
        "access_step_ns": trace.access_step.end_ns - int(trace.access_step.records["time_ns"][0]),
        "stretches": profile.stretch_count,
        "cuts": len(trace.cuts),
        "layers": max(len(trace.layers) - 1, 0),
        "tensors": {
            kind: {
                "count": int(np.count_nonzero(labels.kinds == index)),
                "bytes": int(sizes[labels.kinds == index].sum()),
            }
            for index, kind in enumerate(KINDS)
        },
        "peak_bytes": profile.peak_bytes,
        "coverage": coverage(profile).to_json(),
        "unknown_pages": unknown_pairs(trace.access_step, trace.samples) if sampled else 0,
        "faults": None
        if faults is None
        else {
            "on_tensors": faults_json(faults.by_tensor.sum(axis=0)),
            "elsewhere": faults_json(faults.elsewhere),
        },
        "unattributed": [one.to_json() for one in unattributed_accesses(trace)],
    }


def summary_lines(trace: Trace) -> list[str]:
    """The summary as lines of text. Raises SentinelError."""
    values = summary_json(trace)
    facts, seen = values["facts"], values["coverage"]
    state = f"managed by policy {facts.get('policy')}" if facts.get("managed") else "not managed"
    kinds = ", ".join(
        f"{entry['count']} {kind} ({format_bytes(entry['bytes'])})"
        for kind, entry in values["tensors"].items()
        if entry["count"]
    )
    lines = [
        f"process {facts.get('pid', '?')}, {state}; torch {facts.get('torch', '?')}, "
        f"kernel {facts.get('kernel', '?')}",
        f"{values['steps']} steps of {values['step_ns'] / 1e9:.3f} s and an access step of "
        f"{values['access_step_ns'] / 1e9:.3f} s; {values['stretches']} stretches "
        f"({values['cuts']} cuts), {values['layers']} layers",
        f"tensors: {kinds}",
        f"peak {format_bytes(values['peak_bytes'])} of live tensors",
        f"sources of accesses: {seen['source']}; {seen['untouched_tensors']} tensors "
        f"({format_bytes(seen['untouched_bytes'])}) not accessed in the step",
    ]
    sampled = seen["attributed_pages"] + seen["unattributed_pages"]
    if sampled:
        lines.append(
            f"{sampled} sampled page accesses, {seen['attributed_share']:.2%} attributed to live "
            "tensors"
        )
    if values["unknown_pages"]:
        lines.append(
            f"  {values['unknown_pages']} more pages x stretches are unknown: the pages were "
            "unarmed by other code, or can't be armed"
        )
    if values["faults"] is not None:
        lines.append(_faults_line(**values["faults"]))
    lines += [
        f"  unattributed: {one['pairs']} on {one['pages']} pages of {one['mapping']}: {one['what']}"
        for one in values["unattributed"]
    ]
    lines += [f"note: {note}" for note in facts.get("notes", [])]
    return lines


def _faults_line(on_tensors: dict[str, float], elsewhere: dict[str, float]) -> str:
    """The line about page faults, with their mean numbers per step."""
    by_class = ", ".join(
        f"{count:.4g} {name.replace('_', ' ')}" for name, count in on_tensors.items() if count
    )
    return (
        f"{sum(on_tensors.values()):.4g} page faults on tensors in a step that was not slowed"
        f"{f' ({by_class})' if by_class else ''}, {sum(elsewhere.values()):.4g} elsewhere"
    )
