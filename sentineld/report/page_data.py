# SPDX-License-Identifier: Apache-2.0
"""The figures of a report page, as JSON values: timeline, maps, table of tensors, plan.

Each array of numbers is a dictionary with the type of its elements and their bytes in base64. The
page's script decodes the bytes into a typed array.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sentineld.model.arrays import Floats, Integers, Mask
from sentineld.model.plan import Plan
from sentineld.model.profile import Profile
from sentineld.plan.explain import placement_name
from sentineld.plan.residency import Residency, residency
from sentineld.profile.faults import TensorFaults
from sentineld.report.boxes import Boxes
from sentineld.report.heatmap import Heatmap
from sentineld.report.labels import (
    KIND_COLOURS,
    KINDS,
    Labels,
    layer_runs,
    phases,
    stretch_places,
)
from sentineld.report.tensors import TensorRow, tensor_rows
from sentineld.report.tier_map import TierMap, tier_map
from sentineld.report.tiers import (
    TIERS,
    boundary_moves,
    fast_shares_of_life,
    tier_timeline,
)
from sentineld.report.timeline import Timeline, timeline

TIMELINE_POINTS = 3000
MAP_ROWS = 480
MAP_COLUMNS = 1200
TENSORS_MAX = 50_000
"""Maximum number of tensors in a page; the largest are chosen."""
NAME_CHARACTERS_MAX = 300
"""Longer names are shortened in the middle. Names are untrusted; see page.py."""
FAST_LEVELS = 61
"""Number of levels, apart from 0, to which shares of fast pages are rounded; see _tier_cells()."""
CHOSEN_CELL, UP_CELL, DOWN_CELL = FAST_LEVELS + 2, 64, 128
UNKNOWN_CELL = 2

Packed = dict[str, Any]
"""{"type": name of an element type, "data": base64}"""


@dataclass(frozen=True)
class Report:
    """The contents of a page."""

    title: str
    facts: list[tuple[str, str]]  # (name, value), shown at the top
    notes: list[str]  # lines of text, shown below the facts
    profile: Profile
    labels: Labels
    faults: TensorFaults | None = None
    recorded: tuple[Heatmap, Boxes] | None = None
    """The recorded accesses; None: there is no trace."""
    plan: Plan | None = None


def page_data(report: Report) -> dict[str, Any]:
    """The page's figures as JSON values. Raises SentinelError if the plan moves pages that hold no
    tensor."""
    profile, labels, plan = report.profile, report.labels, report.plan
    rows = tensor_rows(profile, labels, report.faults)
    shown = np.sort(_largest(rows))
    # The index of each tensor in the page's table; -1: the page does not contain the tensor.
    index = np.full(len(rows), -1, np.int64)
    index[shown] = np.arange(len(shown))
    begins = np.cumsum(np.append(0, profile.stretches["time_ns"].astype(np.float64)))
    data: dict[str, Any] = {
        "title": report.title,
        "facts": [[name, value] for name, value in report.facts],
        "notes": [_shortened(note) for note in report.notes],
        "begins_ms": _packed(begins / 1e6, "f8"),
        "places": [_shortened(place) for place in stretch_places(profile)],
        "phases": [[phase.name, phase.first, phase.past] for phase in phases(profile)],
        "runs": [[run.name, run.first, run.past] for run in layer_runs(profile)],
        "kinds": [[kind, KIND_COLOURS[kind]] for kind in KINDS],
        "timelines": [_timeline("kind", timeline(profile, labels), KINDS)],
        "maps": [],
        "tensors": _tensors([rows[at] for at in shown.tolist()], profile, shown),
        "omitted": len(rows) - len(shown),
        "plan": None,
    }
    if report.recorded is not None:
        heat, boxes = report.recorded
        cells = np.where(heat.live > 0, 1, 0)
        cells[(heat.live > 0) & (heat.unknown > 0)] = UNKNOWN_CELL
        data["maps"].append(_map("recorded", heat, boxes, cells, index))
    if plan is not None:
        found = residency(plan, profile)
        moves = boundary_moves(plan, profile)
        tiers = tier_map(plan, profile, found, MAP_ROWS)
        data["timelines"].append(_timeline("tier", tier_timeline(plan, profile, found), TIERS))
        data["maps"].append(_map("planned", tiers.heat, tiers.boxes, _tier_cells(tiers), index))
        data["plan"] = {
            "policy": plan.policy,
            "budget_bytes": plan.budget_bytes,
            "up_bytes": _packed(moves.up_bytes, "f8"),
            "down_bytes": _packed(moves.down_bytes, "f8"),
            "late_bytes": _packed(moves.late_bytes, "f8"),
            "count": _packed(moves.count, "u4"),
            "waits": _packed(moves.waits, "i4"),
            "moves": _moves(plan, index),
        }
        data["tensors"] |= _planned(plan, profile, found, shown)
    return data


def _timeline(group: str, line: Timeline, names: tuple[str, ...]) -> dict[str, Any]:
    shown = [at for at in range(len(names)) if line.live[at].any()]
    binned = line.binned(TIMELINE_POINTS) if len(line.times_ns) > TIMELINE_POINTS else line
    end_ms = float(line.times_ns[-1]) / 1e6
    return {
        "group": group,
        "times_ms": _packed(np.append(binned.times_ns / 1e6, end_ms), "f8"),
        "peak_bytes": int(line.total.max()),
        "peak_ms": float(line.times_ns[line.peak]) / 1e6,
        "series": [
            {
                "name": names[at],
                "max_bytes": int(line.live[at].max()),
                "bytes": _packed(np.append(binned.live[at], binned.live[at, -1]), "f8"),
            }
            for at in shown
        ],
    }


def _map(
    name: str, heat: Heatmap, boxes: Boxes, cells: Integers, index: Integers
) -> dict[str, Any]:
    """The JSON values of a heatmap.

    cells: indexed by [row, stretch]; 0 if no tensor is live. In a map of recorded accesses, a cell
        with live tensors is UNKNOWN_CELL if an access may have been missed, else 1. For a map of
        planned tiers, see _tier_cells().
    index: as in page_data().
    """
    stretches = heat.live.shape[1]
    columns = min(stretches, MAP_COLUMNS)
    first = np.unique(np.arange(columns) * stretches // columns)
    kept = boxes.take(index[boxes.tensor] >= 0)
    # Round up, so that a cell with any access differs from a cell without one.
    accessed = np.ceil(np.maximum.reduceat(heat.accessed, first, axis=1) * 255)
    # A column can cover several stretches. In each row, it shows the cell of the stretch in which
    # the row has the most live pages.
    busiest = _busiest(heat.live, first)
    return {
        "name": name,
        "source": heat.source,
        "rows": len(heat.live),
        "pages": heat.axis.pages,
        "page_bytes": heat.page_bytes,
        "places": [heat.place(row) for row in range(len(heat.live))],
        "borders": heat.axis.begins[1:].tolist(),
        "columns": _packed(first, "u4"),
        "accessed": _packed(accessed, "u1"),
        "cells": _packed(np.take_along_axis(cells, busiest, axis=1), "u1"),
        "boxes": {
            "tensor": _packed(index[kept.tensor], "u4"),
            "begin": _packed(kept.begin, "f8"),
            "past": _packed(kept.past, "f8"),
            "first": _packed(kept.first, "u4"),
            "last": _packed(kept.last, "u4"),
        },
    }


def _busiest(live: Floats, first: Integers) -> Integers:
    """For each row and column: the column's stretch in which the row has the most live pages.

    first: the first stretch of each column.
    """
    ends = np.append(first[1:], live.shape[1])
    found = [
        begin + np.argmax(live[:, begin:end], axis=1)
        for begin, end in zip(first.tolist(), ends.tolist(), strict=True)
    ]
    return np.stack(found, axis=1).astype(np.int64)


def _tier_cells(tiers: TierMap) -> Integers:
    """The number that represents each cell of the map, indexed by [row, stretch].

    0: no tensor is live. 1 .. FAST_LEVELS + 1: the share of fast pages among the row's pages whose
    tier is planned. CHOSEN_CELL: the kernel chooses the tier of all live pages of the row. UP_CELL
    is added if promotions of pages of the row start with the stretch, DOWN_CELL if demotions do.
    """
    live, planned = tiers.heat.live, tiers.heat.live - tiers.chosen
    share = np.divide(tiers.fast, planned, out=np.zeros_like(live), where=planned > 1e-9)
    cells: Integers = 1 + np.rint(np.clip(share, 0.0, 1.0) * FAST_LEVELS).astype(np.int64)
    cells[planned <= 1e-9] = CHOSEN_CELL
    cells += UP_CELL * (tiers.up > 0) + DOWN_CELL * (tiers.down > 0)
    cells[live <= 0] = 0
    return cells


def _tensors(rows: list[TensorRow], profile: Profile, shown: Integers) -> dict[str, Any]:
    """The columns of the table of tensors. shown: the profile's rows that the page contains."""
    tensors = profile.tensors[shown]
    faults = [row.fault_count for row in rows]
    recorded = bool(rows) and rows[0].faults is not None
    return {
        "name": [_shortened(row.name) for row in rows],
        "kind": _packed(np.array([KINDS.index(row.kind) for row in rows]), "u1"),
        "bytes": _packed(tensors["bytes"], "f8"),
        # The stretch of birth or death; -1: the tensor is allocated before the step.
        "born": _packed(np.where(tensors["slot"] < 0, -1, tensors["birth_stretch"]), "i4"),
        "dies": _packed(np.where(tensors["slot"] < 0, -1, tensors["death_stretch"]), "i4"),
        "life": _packed(np.array([row.boundaries for row in rows]), "u4"),
        "layers": _packed(np.array([row.layers for row in rows]), "u4"),
        "read": _packed(np.array([row.bytes_read for row in rows]), "f8"),
        "written": _packed(np.array([row.bytes_written for row in rows]), "f8"),
        "accesses": _packed(np.array([row.page_accesses for row in rows]), "f8"),
        "hotness": _packed(np.array([row.hotness for row in rows]), "f4"),
        "faults": _packed(np.array(faults), "f4") if recorded else None,
        "placed": [placement_name(tensor) for tensor in tensors],
    }


def _planned(plan: Plan, profile: Profile, found: Residency, shown: Integers) -> dict[str, Any]:
    """Columns that the table of tensors has only if there is a plan. shown: as in _tensors()."""
    reasons = [plan.reasons[at] for at in shown.tolist()]
    known = {reason: at for at, reason in enumerate(dict.fromkeys(reasons))}
    counts = np.bincount(plan.moves["tensor"], minlength=len(profile.tensors))
    return {
        "fast": _packed(fast_shares_of_life(profile, found)[shown], "f4"),
        "moves": _packed(counts[shown], "u4"),
        "reasons": [_shortened(reason) for reason in known],
        "reason": _packed(np.array([known[reason] for reason in reasons]), "u4"),
    }


def _moves(plan: Plan, index: Integers) -> dict[str, Packed]:
    kept: Mask = index[plan.moves["tensor"]] >= 0
    moves = plan.moves[kept]
    return {
        "tensor": _packed(index[moves["tensor"]], "u4"),
        "boundary": _packed(moves["boundary"], "u4"),
        "deadline": _packed(moves["deadline"], "u4"),
        "tier": _packed(moves["tier"], "u1"),
        "bytes": _packed(moves["bytes"], "f8"),
    }


def _largest(rows: list[TensorRow]) -> Integers:
    """Indices of the largest TENSORS_MAX tensors."""
    sizes = np.array([row.bytes for row in rows], np.int64)
    largest: Integers = np.argsort(-sizes, kind="stable")[:TENSORS_MAX]
    return largest


def _packed(values: npt.NDArray[Any], kind: str) -> Packed:
    raw = np.ascontiguousarray(values).astype(f"<{kind}").tobytes()
    return {"type": kind, "data": base64.b64encode(raw).decode()}


def _shortened(text: str) -> str:
    if len(text) <= NAME_CHARACTERS_MAX:
        return text
    half = NAME_CHARACTERS_MAX // 2
    return f"{text[:half]}…{text[-half:]}"
