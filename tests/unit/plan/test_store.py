# SPDX-License-Identifier: Apache-2.0
"""Plans as layout memfd, as file and as text."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from sentineld.base.errors import SentinelError
from sentineld.model import protocol
from sentineld.model.plan import PART_DTYPE, SLOT_DROP_PARTS, Range
from sentineld.plan.explain import plan_json, plan_text, tensors_json
from sentineld.plan.layout_wire import pack_layout, unpack_layout
from sentineld.plan.store import load_plan, save_plan
from sentineld.policies.registry import policy
from tests.unit.plan.toys import PAGE, toy_plan, toy_profile, two_tiers, with_layout


def test_a_layout_survives_packing_and_unpacking() -> None:
    layout = with_layout(
        toy_plan(),
        waits=np.array([3, -1, 1, 0], np.int32),
        cuts=np.array([1, 2], np.uint32),
        huge=(Range(0, protocol.HUGE_BYTES), Range(4 * protocol.HUGE_BYTES, protocol.HUGE_BYTES)),
    ).layout
    slots = layout.slots.copy()
    slots["flags"][2] |= SLOT_DROP_PARTS
    parts = np.array([(4 * PAGE, PAGE, 2, 0)], PART_DTYPE)
    layout = replace(layout, slots=slots, parts=parts)
    data = pack_layout(layout, 77, two_tiers(), 4)
    found = unpack_layout(data)
    assert (found.layout_id, found.arena_bytes, found.heap_node) == (77, 5 * PAGE, 1)
    assert found.slots.tolist() == layout.slots.tolist()
    assert found.cuts.tolist() == [1, 2]
    assert found.parts.tolist() == layout.parts.tolist()
    assert found.regions[["offset", "bytes", "node"]].tolist() == [
        (0, PAGE, 0),
        (PAGE, 2 * PAGE, 0),
        (3 * PAGE, 2 * PAGE, 1),
    ]
    asked, before = int(protocol.WaitFlag.ENABLED), int(protocol.WaitFlag.STEP_BEFORE)
    # Boundary 0 waits for 3 of the previous step, 2 for 1, 3 for 0 of the same step.
    assert found.huge.tolist() == [(one.offset, one.bytes) for one in layout.huge]
    assert found.waits.tolist() == [(3, asked | before), (0, 0), (1, asked), (0, asked)]


PARTS = ("slots", "cuts", "regions", "waits", "parts")


def test_the_header_describes_the_bytes() -> None:
    data = pack_layout(toy_plan().layout, 1, two_tiers(), 4)
    header = np.frombuffer(data, protocol.LAYOUT_DTYPE, 1)[0]
    assert header["total_bytes"] == len(data)
    offsets = [int(header[f"{name}_offset"]) for name in PARTS]
    assert offsets == sorted(offsets)
    assert all(offset % 8 == 0 for offset in offsets)
    assert offsets[0] == protocol.LAYOUT_DTYPE.itemsize


def test_no_tier_is_written_as_no_node() -> None:
    first_touch = policy("first-touch").plan(toy_profile(), two_tiers(), 8 * PAGE)
    found = unpack_layout(pack_layout(first_touch.layout, 1, two_tiers(), 4))
    assert found.heap_node == -1
    assert set(found.regions["node"].tolist()) == {-1}


def test_a_wrong_number_of_boundaries_is_rejected() -> None:
    with pytest.raises(ValueError, match="4 waits for 5 boundaries"):
        pack_layout(toy_plan().layout, 1, two_tiers(), 5)


@pytest.mark.parametrize("damage", ["short", "magic", "length"])
def test_invalid_bytes_are_rejected(damage: str) -> None:
    data = pack_layout(toy_plan().layout, 1, two_tiers(), 4)
    broken = {"short": data[:50], "magic": b"x" + data[1:], "length": data + bytes(8)}[damage]
    with pytest.raises(SentinelError, match="not a valid layout") as error:
        unpack_layout(broken)
    assert error.value.code == "protocol-mismatch"


def test_plan_and_profile_survive_saving_and_loading(tmp_path: Path) -> None:
    profile = toy_profile()
    plan = policy("sentinel").plan(profile, two_tiers(), 8 * PAGE)
    save_plan(tmp_path / "1-2.npz", plan, profile)
    again, same = load_plan(tmp_path / "1-2.npz")
    for one, other in ((plan, again), (plan.layout, again.layout), (profile, same)):
        for name in one.__dataclass_fields__:
            left, right = getattr(one, name), getattr(other, name)
            if isinstance(left, np.ndarray):
                assert left.dtype == right.dtype
                assert np.array_equal(left, right)
            elif name != "layout":
                assert left == right
    assert [path.name for path in tmp_path.iterdir()] == ["1-2.npz"]


def test_damaged_and_missing_files_raise_different_errors(tmp_path: Path) -> None:
    path = tmp_path / "plan.npz"
    with pytest.raises(FileNotFoundError):
        load_plan(path)
    save_plan(path, toy_plan(), toy_profile())
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(SentinelError, match="holds no valid plan"):
        load_plan(path)
    np.savez(path, version=np.array(99))
    with pytest.raises(SentinelError, match="version 99"):
        load_plan(path)


def test_a_plan_as_text() -> None:
    plan, profile = policy("sentinel").plan(toy_profile(), two_tiers(), 8 * PAGE), toy_profile()
    text = plan_text(plan, profile)
    assert "policy sentinel, budget 32.0 KiB" in text
    assert "expects a fast share of 78.9%" in text
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
