# SPDX-License-Identifier: Apache-2.0
"""Plans as text and as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import numpy as np
import pytest

from sentineld.model.protocol import Boundary, Placement
from sentineld.plan.explain import (
    REASONS_SHOWN,
    plan_json,
    plan_text,
    stretch_name,
    tensors_json,
)
from sentineld.policies.registry import policy
from tests.unit.plan.toys import PAGE, large_profile, toy_plan, toy_profile, two_tiers, with_layout


def test_a_plan_as_text() -> None:
    plan, profile = policy("sentinel").plan(toy_profile(), two_tiers(), 8 * PAGE), toy_profile()
    text = plan_text(plan, profile)
    assert "policy sentinel, budget 32.0 KiB" in text
    assert "predicted fast share 78.9%" in text
    assert "fast for its whole lifetime: its accesses justify the fast memory" in text
    assert all(len(line) < 200 for line in text.splitlines())


def test_the_schedule_names_boundaries_moves_and_waits() -> None:
    plan = with_layout(toy_plan(), waits=np.array([-1, 0, -1, -1], np.int32))
    text = plan_text(plan, toy_profile())
    assert "   0 step                             down 8.0 KiB in 1 move" in text
    assert "   1 block forward                    waits for the demotions of boundary 0" in text
    assert "   2 block backward                   up 8.0 KiB in 1 move" in text


def test_plan_and_tensors_as_json() -> None:
    profile = toy_profile()
    plan = policy("sentinel").plan(profile, two_tiers(), 8 * PAGE)
    answer = json.loads(json.dumps(plan_json(plan, profile)))
    assert answer["predicted"] == asdict(plan.predicted)
    assert len(answer["moves"]) == len(plan.moves)
    rows = json.loads(json.dumps(tensors_json(plan, profile)))
    assert [row["kind"] for row in rows] == [
        "activation",
        "scratch",
        "gradient",
        "persistent",
        "persistent",
    ]
    assert rows[2]["page_accesses"] == 4
    accesses = profile.accesses
    for name in ("bytes_read", "bytes_written"):
        assert sum(row[name] for row in rows) == int(accesses[name].sum())
    assert rows[3]["initial_tier"] == 1
    assert "reason" not in tensors_json(None, profile)[0]


def test_placed_tensors_are_marked() -> None:
    profile = toy_profile()
    profile.tensors["placed"][[0, 4]] = [Placement.FAST, Placement.SLOW]
    for plan in (None, toy_plan()):
        found = [row["placed"] for row in tensors_json(plan, profile)]
        assert found == ["fast", None, None, None, "slow"]
    assert plan_json(toy_plan(), profile)["placed"] == {"0": "fast", "4": "slow"}


@pytest.mark.parametrize(
    ("kind", "layer", "name"),
    [
        (Boundary.FORWARD, 1, "block forward"),
        (Boundary.OPTIMIZER, 0, "optimizer"),
        (Boundary.CUT, 1, "block cut 2"),
        (Boundary.BACKWARD, 7, "backward"),  # no such layer
        (99, 1, "block kind 99"),
    ],
)
def test_a_stretch_is_named_by_its_layer_and_boundary(kind: int, layer: int, name: str) -> None:
    profile = toy_profile()
    profile.stretches["kind"][1], profile.stretches["layer"][1] = kind, layer
    assert stretch_name(profile, 1) == name


def test_many_reasons_are_summarized() -> None:
    profile = large_profile()
    count = REASONS_SHOWN + 3
    tensors = np.repeat(profile.tensors[3:4], count)
    many = replace(profile, tensors=tensors, accesses=profile.accesses[:0])
    plan = replace(toy_plan(), reasons=tuple(f"reason {at}" for at in range(count)))
    text = plan_text(plan, many)
    assert text.endswith("  and 3 more reasons; see sentinelctl tensors")
    assert sum("reason " in line for line in text.splitlines()) == REASONS_SHOWN


def test_a_plan_without_moves_says_so() -> None:
    still = replace(toy_plan(), moves=toy_plan().moves[:0])
    assert "  no moves" in plan_text(still, toy_profile()).splitlines()
