# SPDX-License-Identifier: Apache-2.0
"""Layouts as the contents of the layout memfd."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentineld.base.errors import SentinelError
from sentineld.model import protocol
from sentineld.model.plan import PART_DTYPE, SLOT_DROP_PARTS, Range
from sentineld.plan.accesses import access_table
from sentineld.plan.layout_wire import pack_layout, unpack_layout
from sentineld.policies.registry import policy
from tests.unit.plan.toys import (
    PAGE,
    toy_plan,
    toy_profile,
    two_tiers,
    with_layout,
)


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
    assert found.huge.tolist() == [(one.offset, one.bytes) for one in layout.huge]
    # Boundary 0 waits for the moves of boundary 3 of the previous step. Boundary 1 does not wait.
    # Boundary 2 waits for the moves of boundary 1 of the same step, and boundary 3 for those of
    # boundary 0 of the same step.
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


def test_the_table_survives_packing_and_unpacking() -> None:
    layout = toy_plan().layout
    table = access_table(toy_profile(), layout, two_tiers())
    found = unpack_layout(pack_layout(layout, 1, two_tiers(), 4, table))
    assert found.accesses is not None
    assert found.accesses.tolist() == table.tolist()
    assert unpack_layout(pack_layout(layout, 1, two_tiers(), 4)).accesses is None
    nothing = unpack_layout(pack_layout(layout, 1, two_tiers(), 4, table[:0])).accesses
    assert nothing is not None
    assert len(nothing) == 0
    for pages, expected in ((None, None), (0, 1), (7, 7)):
        data = pack_layout(layout, 1, two_tiers(), 4, table, pages)
        assert unpack_layout(data).fast_pages == expected


def test_a_tier_that_does_not_exist_is_rejected() -> None:
    layout = with_layout(toy_plan(), heap_tier=2).layout
    with pytest.raises(ValueError, match="tier 2 does not exist"):
        pack_layout(layout, 1, two_tiers(), 4)


@given(st.integers(0, protocol.LAYOUT_DTYPE.itemsize - 1), st.binary(min_size=1, max_size=8))
def test_a_damaged_header_is_rejected_or_stays_within_the_bytes(at: int, change: bytes) -> None:
    data = bytearray(pack_layout(toy_plan().layout, 1, two_tiers(), 4))
    data[at : at + len(change)] = change
    try:
        found = unpack_layout(bytes(data))
    except SentinelError:
        found = None
    if found is not None:
        tables = (found.slots, found.cuts, found.regions, found.waits, found.parts, found.huge)
        assert all(table.nbytes <= len(data) for table in tables)
