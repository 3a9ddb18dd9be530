# SPDX-License-Identifier: Apache-2.0
"""A plan as text and as JSON: layout, schedule, prediction and the reason for each placement."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict
from typing import Any

import numpy as np

from sentineld.base.units import format_bytes
from sentineld.model.plan import SLOT_DROP, SLOT_DROP_PARTS, SLOT_PLANNED, Plan, Space
from sentineld.model.profile import Kind, Profile
from sentineld.model.protocol import Boundary, Placement
from sentineld.plan.items import access_counts, tensor_pages
from sentineld.plan.layers import layer_name
from sentineld.plan.stall_trial import late_moves, stall_boundaries

REASONS_SHOWN = 20
"""Maximum number of distinct reasons that plan_text() lists."""


def plan_json(plan: Plan, profile: Profile) -> dict[str, Any]:
    """The plan as plain values that can be serialised as JSON."""
    return {
        "policy": plan.policy,
        "budget_bytes": plan.budget_bytes,
        "predicted": asdict(plan.predicted),
        "notes": list(plan.notes),
        "arena_bytes": plan.layout.arena_bytes,
        "regions": [asdict(region) for region in plan.layout.regions],
        "cuts": [int(cut) for cut in plan.layout.cuts],
        "waits": [int(wait) for wait in plan.layout.waits],
        "moves": [
            {
                "boundary": int(move["boundary"]),
                "deadline": int(move["deadline"]),
                "tensor": int(move["tensor"]),
                "space": Space(int(move["space"])).name.lower(),
                "tier": int(move["tier"]),
                "offset": int(move["offset"]),
                "bytes": int(move["bytes"]),
                "late": bool(late),
            }
            for move, late in zip(plan.moves, late_moves(plan), strict=True)
        ],
        "reasons": list(plan.reasons),
        "placed": {
            str(index): placement_name(profile.tensors[index])
            for index in np.flatnonzero(profile.tensors["placed"]).tolist()
        },
    }


def plan_text(plan: Plan, profile: Profile) -> str:
    """The plan as text for `sentinelctl plan show`."""
    expected = plan.predicted
    lines = [
        f"policy {plan.policy}, budget {format_bytes(plan.budget_bytes)}",
        f"predicted fast share {expected.fast_share:.1%}, with at most "
        f"{format_bytes(expected.peak_fast_bytes)} of fast memory in use",
        f"moves {format_bytes(expected.promoted_bytes)} up and "
        f"{format_bytes(expected.demoted_bytes)} down in a step of {expected.step_ns / 1e9:.3f} s",
        *(f"  {note}" for note in plan.notes),
        "",
        f"arena of {format_bytes(plan.layout.arena_bytes)}",
        *(
            f"  {region.name:12} {format_bytes(region.bytes):>10}  "
            + (
                "node chosen by the kernel at first touch"
                if region.tier is None
                else f"pages born on tier {region.tier}"
            )
            for region in plan.layout.regions
        ),
        "",
        f"schedule ({profile.stretch_count} boundaries, {len(plan.layout.cuts)} of them cuts)",
        *_schedule_lines(plan, profile),
        "",
        "reasons",
        *_reason_lines(plan, profile),
    ]
    return "\n".join(lines)


def tensors_json(plan: Plan | None, profile: Profile) -> list[dict[str, Any]]:
    """The profile's tensors for JSON. If there is a plan, each entry also has the tensor's offset
    in the arena, whether the plan drops its pages, its initial tier, and the reason for these."""
    count, accesses = len(profile.tensors), profile.accesses
    accessed = np.bincount(accesses["tensor"], access_counts(profile), minlength=count)
    stretches = np.bincount(accesses["tensor"], minlength=count)
    read, written = (
        np.bincount(accesses["tensor"], accesses[name].astype(np.float64), minlength=count)
        for name in ("bytes_read", "bytes_written")
    )
    rows = []
    for index, tensor in enumerate(profile.tensors):
        slot = int(tensor["slot"])
        birth = int(tensor["birth_stretch"])
        row: dict[str, Any] = {
            "tensor": index,
            "kind": Kind(int(tensor["kind"])).name.lower(),
            "bytes": int(tensor["bytes"]),
            "slot": None if slot < 0 else slot,
            "address": int(tensor["address"]),
            "layer": None if slot < 0 else stretch_name(profile, birth),
            "birth_stretch": birth,
            "death_stretch": int(tensor["death_stretch"]),
            "wraps": bool(tensor["wraps"]),
            "bytes_read": int(read[index]),
            "bytes_written": int(written[index]),
            "page_accesses": round(float(accessed[index])),
            "stretches_accessed": int(stretches[index]),
            "placed": placement_name(tensor),
        }
        if plan is not None:
            flags = int(plan.layout.slots["flags"][slot]) if slot >= 0 else 0
            planned = bool(flags & SLOT_PLANNED)
            row["offset"] = int(plan.layout.slots["offset"][slot]) if planned else None
            row["dropped"] = planned and bool(flags & (SLOT_DROP | SLOT_DROP_PARTS))
            first = int(plan.initial_tier[index])
            row["initial_tier"] = None if first == 255 else first
            row["reason"] = plan.reasons[index]
        rows.append(row)
    return rows


def placement_name(tensor: np.void) -> str | None:
    """The tier on which the script has placed a tensor, "fast" or "slow"; None: the script has not
    placed it."""
    placement = int(tensor["placed"])
    return Placement(placement).name.lower() if placement else None


def stretch_name(profile: Profile, stretch: int) -> str:
    """The display name of a stretch: its layer and the kind of boundary that begins it."""
    row = profile.stretches[stretch]
    kind = int(row["kind"])
    known = kind in set(Boundary)
    what = Boundary(kind).name.lower() if known else f"kind {kind}"
    if kind == Boundary.CUT:
        what = f"cut {int(row['cursor'])}"
    return f"{layer_name(profile, stretch)} {what}".strip()


def _schedule_lines(plan: Plan, profile: Profile) -> list[str]:
    lines, stalls = [], stall_boundaries(plan)
    for boundary in range(profile.stretch_count):
        moves = plan.moves[plan.moves["boundary"] == boundary]
        wait = int(plan.layout.waits[boundary])
        if not len(moves) and wait < 0:
            continue
        parts = []
        for word, chosen in (("down", moves["tier"] != 0), ("up", moves["tier"] == 0)):
            if chosen.any():
                size = format_bytes(int(moves["bytes"][chosen].sum()))
                number = int(np.count_nonzero(chosen))
                parts.append(f"{word} {size} in {number} move{'' if number == 1 else 's'}")
        if wait >= 0:
            before = " of the previous step" if wait > boundary else ""
            parts.append(f"waits for the demotions of boundary {wait}{before}")
        if boundary in stalls:
            parts.append("may wait for late promotions")
        lines.append(f"  {boundary:4} {stretch_name(profile, boundary):32} {', '.join(parts)}")
    return lines or ["  no moves"]


def _reason_lines(plan: Plan, profile: Profile) -> list[str]:
    sizes = tensor_pages(profile) * profile.page_bytes
    bytes_of: defaultdict[str, int] = defaultdict(int)
    count_of: defaultdict[str, int] = defaultdict(int)
    for index, reason in enumerate(plan.reasons):
        kind = Kind(int(profile.tensors["kind"][index])).name.lower()
        key = f"{kind:10} {reason}"
        bytes_of[key] += int(sizes[index])
        count_of[key] += 1
    order = sorted(bytes_of, key=lambda key: -bytes_of[key])
    lines = [
        f"  {format_bytes(bytes_of[key]):>10} in {count_of[key]:4} tensors: {key}"
        for key in order[:REASONS_SHOWN]
    ]
    if len(order) > REASONS_SHOWN:
        lines.append(f"  and {len(order) - REASONS_SHOWN} more reasons; see sentinelctl tensors")
    return lines
