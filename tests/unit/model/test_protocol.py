# SPDX-License-Identifier: Apache-2.0
"""protocol.py agrees with native/protocol.h. A C program prints the header's sizes, offsets and
values."""

from __future__ import annotations

import re
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sentineld.model import plan as plan_model
from sentineld.model import protocol
from sentineld.model import records as model
from sentineld.shim import native, runtime, selftest
from tests.unit.model.headers import c_values
from tests.unit.shim.harness import NATIVE

STRUCTS = {
    "sentinel_control": protocol.CONTROL_DTYPE,
    "sentinel_record": protocol.RECORD_DTYPE,
    "sentinel_slot": protocol.SLOT_DTYPE,
    "sentinel_part": protocol.PART_DTYPE,
    "sentinel_region": protocol.REGION_DTYPE,
    "sentinel_wait": protocol.WAIT_DTYPE,
    "sentinel_huge": protocol.HUGE_DTYPE,
    "sentinel_layout": protocol.LAYOUT_DTYPE,
    "sentinel_access": protocol.ACCESS_DTYPE,
    "sentinel_residency": protocol.RESIDENCY_DTYPE,
    "sentinel_page_range": protocol.PAGE_RANGE_DTYPE,
    "sentinel_flight": protocol.FLIGHT_DTYPE,
    "sentinel_page_queue": protocol.PAGE_QUEUE_DTYPE,
    "sentinel_paging": protocol.PAGING_DTYPE,
    "sentinel_move": protocol.PAGER_MOVE_DTYPE,
}
ENUMS: dict[str, type[IntEnum] | Any] = {
    "SENTINEL_MODE": protocol.Mode,
    "SENTINEL_FLAG": protocol.Flag,
    "SENTINEL_EVENT": protocol.Event,
    "SENTINEL_ALLOC": protocol.Alloc,
    "SENTINEL_BOUNDARY": protocol.Boundary,
    "SENTINEL_SLOT": protocol.SlotFlag,
    "SENTINEL_WAIT": protocol.WaitFlag,
    "SENTINEL_MOVE": protocol.MoveFlag,
    "SENTINEL_LAYOUT": protocol.LayoutFlag,
    "SENTINEL_ACCESS": protocol.AccessFlag,
    "SENTINEL_PLACEMENT": protocol.Placement,
}
VALUES = {
    "SENTINEL_SHIM_VERSION": protocol.SHIM_VERSION,
    "SENTINEL_CONTROL_MAGIC": protocol.CONTROL_MAGIC,
    "SENTINEL_LAYOUT_MAGIC": protocol.LAYOUT_MAGIC,
    "SENTINEL_RESIDENCY_MAGIC": protocol.RESIDENCY_MAGIC,
    "SENTINEL_TENSOR_BYTES_MIN": protocol.TENSOR_BYTES_MIN,
    "SENTINEL_HUGE_BYTES": protocol.HUGE_BYTES,
    "SENTINEL_HEARTBEAT_STALE_NS": protocol.HEARTBEAT_STALE_NS,
    "SENTINEL_QUEUE_RANGES": protocol.QUEUE_RANGES,
    "SENTINEL_FLIGHT_RANGES": protocol.FLIGHT_RANGES,
}


def test_sizes_offsets_and_values_equal_the_headers(tmp_path: Path) -> None:
    expected: dict[str, int] = dict(VALUES)
    for name, dtype in STRUCTS.items():
        expected[f"sizeof(struct {name})"] = dtype.itemsize
        for field, (kind, offset) in dtype.fields.items():  # type: ignore[union-attr]
            expected[f"offsetof(struct {name}, {field})"] = offset
            expected[f"sizeof(((struct {name} *)0)->{field})"] = kind.itemsize
    for prefix, members in ENUMS.items():
        for member in members:
            expected[f"{prefix}_{member.name}"] = member.value
    assert c_values(list(expected), ['"protocol.h"'], tmp_path) == expected


def test_every_struct_and_constant_of_the_header_is_compared() -> None:
    text = (NATIVE / "protocol.h").read_text()
    assert set(re.findall(r"^struct (\w+) \{", text, re.MULTILINE)) == set(STRUCTS)
    members = {f"{prefix}_{one.name}" for prefix, kind in ENUMS.items() for one in kind}
    constants = set(re.findall(r"^(?:#define |\t)(SENTINEL_[A-Z0-9_]+)(?: |,)", text, re.MULTILINE))
    assert constants == members | set(VALUES)


def test_every_field_of_the_header_is_in_the_dtypes() -> None:
    text = (NATIVE / "protocol.h").read_text()
    for name, dtype in STRUCTS.items():
        body = text.split(f"struct {name} {{")[1].split("\n};")[0]
        fields = {
            line.split(";")[0].split("[")[0].split()[-1]
            for line in body.splitlines()
            if line.lstrip().startswith(("uint", "int", "struct"))
        }
        plain = {field for field in fields if not field.startswith("reserved")}
        assert plain == {field for field in dtype.names or () if not field.startswith("reserved")}


def test_no_table_of_a_layout_has_gaps() -> None:
    """numpy does not initialise gaps between fields, so a gap would expose old contents of the
    daemon's memory to the process."""
    for table in (
        *(protocol.LAYOUT_DTYPE, protocol.SLOT_DTYPE, protocol.REGION_DTYPE, protocol.PART_DTYPE),
        *(protocol.HUGE_DTYPE, protocol.WAIT_DTYPE, protocol.ACCESS_DTYPE),
        protocol.PAGER_MOVE_DTYPE,
    ):
        assert table.fields is not None
        assert sum(field.itemsize for field, *_ in table.fields.values()) == table.itemsize


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(protocol.RECORD_DTYPE, model.RECORD_DTYPE), (protocol.SLOT_DTYPE, plan_model.SLOT_DTYPE)],
)
def test_protocol_and_model_dtypes_have_the_same_layout(
    ours: np.dtype[Any], theirs: np.dtype[Any]
) -> None:
    assert ours.itemsize == theirs.itemsize
    assert (
        {n: f[:2] for n, f in ours.fields.items()}
        == {  # type: ignore[union-attr]
            n: f[:2]
            for n, f in theirs.fields.items()  # type: ignore[union-attr]
        }
    )


def test_the_epoch_ioctl_equals_the_modules(tmp_path: Path) -> None:
    pairs = {
        "EPOCH_IOCTL": "SENTINEL_IOC_EPOCH",
        "EPOCH_RESIDENCY": "SENTINEL_EPOCH_RESIDENCY",
        "sizeof(struct epoch_request)": "sizeof(struct sentinel_epoch)",
        "offsetof(struct epoch_request, epoch)": "offsetof(struct sentinel_epoch, epoch)",
        "offsetof(struct epoch_request, flags)": "offsetof(struct sentinel_epoch, flags)",
    }
    names = [*pairs, *pairs.values()]
    values = c_values(names, ['"epoch.h"', '"sentinel_uapi.h"'], tmp_path)
    assert [values[ours] for ours in pairs] == [values[theirs] for theirs in pairs.values()]


def test_constants_copied_into_the_shim_equal_the_protocols() -> None:
    fields = protocol.CONTROL_DTYPE.fields
    assert fields is not None
    assert fields["small_bytes"][1] == selftest.SMALL_BYTES_OFFSET
    assert fields["heap_base"][1] == selftest.HEAP_BASE_OFFSET
    assert fields["heap_bytes"][1] == selftest.HEAP_BYTES_OFFSET
    assert fields["cursor"][1] == selftest.CURSOR_OFFSET
    assert fields["layout_id"][1] == runtime.LAYOUT_ID_OFFSET
    assert fields["step"][1] == selftest.STEP_OFFSET
    assert protocol.TENSOR_BYTES_MIN == selftest.TENSOR_BYTES
    assert native.SHIM_VERSION == protocol.SHIM_VERSION
