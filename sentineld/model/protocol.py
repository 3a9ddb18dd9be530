# SPDX-License-Identifier: Apache-2.0
"""The structures and values of shim/native/protocol.h in Python: control words, records, layout.

tests/unit/model/test_protocol.py compiles a C program against the header and compares every size,
offset and value. This module imports numpy, so the shim imports this module only after
torch. A process that imports sentineld.shim but not torch therefore does not load numpy.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag
from typing import Any

import numpy as np

SHIM_VERSION = 10
CONTROL_MAGIC = 0x314C544E45534853
LAYOUT_MAGIC = 0x3159414C53484E53
RESIDENCY_MAGIC = 0x3153455253484E53
TENSOR_BYTES_MIN = 4096
HUGE_BYTES = 2 << 20
QUEUE_RANGES = 1024
FLIGHT_RANGES = 1024
HEARTBEAT_STALE_NS = 2_000_000_000
NOT_IN_SEQUENCE = 0xFFFFFFFF
"""record.value of an allocation that is not in the step's sequence, and of its free."""


class Mode(IntEnum):
    """Values of control.mode."""

    DORMANT = 0
    RECORD = 1
    REPLAY = 2
    DIVERGED = 3


class Flag(IntFlag):
    """Bits of control.flags."""

    RECORD = 1
    EPOCHS = 2
    RESIDENCY = 4
    MESSAGE = 8
    NO_STALLS = 16


class Event(IntEnum):
    """Values of record.event."""

    NONE = 0
    ALLOC = 1
    FREE = 2
    BOUNDARY = 3
    STEP = 4
    SERVED = 5
    SERVED_FAST = 6
    PLACED = 7


class Placement(IntEnum):
    """The tier on which the script has placed a tensor; values of record.detail if the event is
    PLACED."""

    AUTO = 0
    FAST = 1
    SLOW = 2


class Alloc(IntEnum):
    """Values of record.detail if the event is ALLOC."""

    STEP = 0
    LIVE = 1
    OTHER = 2


class Boundary(IntEnum):
    """Values of record.detail if the event is BOUNDARY."""

    STEP = 0
    FORWARD = 1
    BACKWARD = 2
    OPTIMIZER = 3
    CUT = 4
    OUTSIDE = 5


class SlotFlag(IntFlag):
    """Bits of slot.flags."""

    PLANNED = 1
    DROP = 2
    POPULATE = 4
    DROP_PARTS = 8
    OPTIONAL = 16


class WaitFlag(IntFlag):
    """Bits of wait.flags."""

    ENABLED = 1
    STEP_BEFORE = 2


class LayoutFlag(IntFlag):
    """Bits of layout.flags."""

    EMULATED = 1


class MoveFlag(IntFlag):
    """Bits of move.flags."""

    EVICT = 1
    HEAP = 2


class AccessFlag(IntFlag):
    """Bits of access.flags."""

    HEAP = 1
    AT_BIRTH = 2
    AFTER = 4
    HIDES = 8


def _struct(fields: dict[str, tuple[int, str]], size_bytes: int) -> np.dtype[Any]:
    return np.dtype(
        {
            "names": list(fields),
            "offsets": [offset for offset, _ in fields.values()],
            "formats": [kind for _, kind in fields.values()],
            "itemsize": size_bytes,
        }
    )


CONTROL_DTYPE = _struct(
    {
        "magic": (0x000, "<u8"),
        "version": (0x008, "<u4"),
        "pid": (0x00C, "<u4"),
        "ring_offset": (0x010, "<u8"),
        "ring_records": (0x018, "<u8"),
        "heap_base": (0x020, "<u8"),
        "heap_bytes": (0x028, "<u8"),
        "diverged_in_row": (0x078, "<u8"),
        "ring_head": (0x080, "<u8"),
        "ring_lost": (0x088, "<u8"),
        "step": (0x090, "<u8"),
        "position": (0x098, "<u8"),
        "cursor": (0x0A0, "<u8"),
        "layer": (0x0A8, "<u4"),
        "mode": (0x0AC, "<u4"),
        "heap_used": (0x0B0, "<u8"),
        "heap_live": (0x0B8, "<u8"),
        "arena_base": (0x0C0, "<u8"),
        "arena_bytes": (0x0C8, "<u8"),
        "layout_id": (0x0D0, "<u8"),
        "small_bytes": (0x0D8, "<u8"),
        "fallback_bytes": (0x0E0, "<u8"),
        "diverged_steps": (0x0E8, "<u8"),
        "barrier_timeouts": (0x0F0, "<u8"),
        "barrier_wait_ns": (0x0F8, "<u8"),
        "flags": (0x100, "<u4"),
        "heartbeat": (0x108, "<u8"),
        "ring_tail": (0x110, "<u8"),
        "moves_done": (0x118, "<u8"),
        "barrier_timeout_ns": (0x120, "<u8"),
        "wake_position": (0x128, "<u8"),
    },
    512,
)
"""struct sentinel_control without its reserved words; the header documents the fields."""

RECORD_DTYPE = _struct(
    {
        "time_ns": (0, "<u8"),
        "address": (8, "<u8"),
        "bytes": (16, "<u8"),
        "value": (24, "<u4"),
        "layer": (28, "<u2"),
        "event": (30, "u1"),
        "detail": (31, "u1"),
    },
    32,
)
"""struct sentinel_record."""

SLOT_DTYPE = _struct(
    {"bytes": (0, "<u8"), "offset": (8, "<u8"), "flags": (16, "<u4"), "slack": (20, "<u4")}, 24
)
"""struct sentinel_slot."""

REGION_DTYPE = _struct(
    {"offset": (0, "<u8"), "bytes": (8, "<u8"), "node": (16, "<i4"), "reserved": (20, "<u4")}, 24
)
"""struct sentinel_region."""

PART_DTYPE = _struct(
    {"offset": (0, "<u8"), "bytes": (8, "<u8"), "slot": (16, "<u4"), "reserved": (20, "<u4")}, 24
)
"""struct sentinel_part."""

HUGE_DTYPE = _struct({"offset": (0, "<u8"), "bytes": (8, "<u8")}, 16)
"""struct sentinel_huge."""

WAIT_DTYPE = _struct({"boundary": (0, "<u4"), "flags": (4, "<u4")}, 8)
"""struct sentinel_wait."""

LAYOUT_DTYPE = _struct(
    {
        "magic": (0, "<u8"),
        "version": (8, "<u4"),
        "slot_count": (12, "<u4"),
        "layout_id": (16, "<u8"),
        "arena_bytes": (24, "<u8"),
        "cut_count": (32, "<u4"),
        "region_count": (36, "<u4"),
        "boundary_count": (40, "<u4"),
        "heap_node": (44, "<i4"),
        "slots_offset": (48, "<u8"),
        "cuts_offset": (56, "<u8"),
        "regions_offset": (64, "<u8"),
        "waits_offset": (72, "<u8"),
        "total_bytes": (80, "<u8"),
        "flags": (88, "<u4"),
        "access_count": (92, "<u4"),
        "accesses_offset": (96, "<u8"),
        "fast_pages": (104, "<u8"),
        "parts_offset": (112, "<u8"),
        "part_count": (120, "<u4"),
        "huge_count": (124, "<u4"),
        "huge_offset": (128, "<u8"),
        "moves_offset": (136, "<u8"),
        "move_count": (144, "<u4"),
        "reserved": (148, "<u4"),
    },
    152,
)
"""struct sentinel_layout."""

PAGER_MOVE_DTYPE = _struct(
    {
        "page": (0, "<u8"),
        "pages": (8, "<u4"),
        "boundary": (12, "<u4"),
        "deadline": (16, "<u4"),
        "end": (20, "<u4"),
        "flags": (24, "<u4"),
        "reserved": (28, "<u4"),
    },
    32,
)
"""struct sentinel_move."""

ACCESS_DTYPE = _struct(
    {
        "offset": (0, "<u8"),
        "slow_ps": (8, "<u8"),
        "pages": (16, "<u4"),
        "touched": (20, "<u4"),
        "stretch": (24, "<u4"),
        "flags": (28, "<u2"),
        "node": (30, "<i2"),
        "slot": (32, "<u4"),
        "reserved": (36, "<u4"),
    },
    40,
)
"""struct sentinel_access."""

RESIDENCY_DTYPE = _struct(
    {
        "magic": (0, "<u8"),
        "version": (8, "<u4"),
        "page_bytes": (12, "<u4"),
        "layout_id": (16, "<u8"),
        "arena_offset": (24, "<u8"),
        "arena_pages": (32, "<u8"),
        "heap_offset": (40, "<u8"),
        "heap_pages": (48, "<u8"),
        "owed_ns": (56, "<u8"),
        "paid_ns": (64, "<u8"),
        "moved_fast": (72, "<i8"),
        "in_flight_fast": (80, "<u8"),
        "fast_own": (88, "<i8"),
        "fast_limit": (96, "<u8"),
        "paging_offset": (104, "<u8"),
        "flight_offset": (112, "<u8"),
    },
    128,
)
"""struct sentinel_residency without its reserved words."""

PAGE_RANGE_DTYPE = _struct({"page": (0, "<u8"), "pages": (8, "<u4"), "space": (12, "<u4")}, 16)
"""struct sentinel_page_range."""

FLIGHT_DTYPE = np.dtype(
    [
        ("sequence", "<u8"),
        ("limit", "<u8"),
        ("begin_ns", "<u8"),
        ("page_ps", "<u8"),
        ("count", "<u4"),
        ("node", "<u4"),
        ("ranges", PAGE_RANGE_DTYPE, FLIGHT_RANGES),
    ]
)
"""struct sentinel_flight."""

PAGE_QUEUE_DTYPE = np.dtype(
    [("head", "<u8"), ("tail", "<u8"), ("ranges", PAGE_RANGE_DTYPE, QUEUE_RANGES)]
)
"""struct sentinel_page_queue."""

PAGING_DTYPE = np.dtype(
    [
        ("bytes_read", "<u8"),
        ("bytes_written", "<u8"),
        ("faults", "<u8"),
        ("births_by_fault", "<u8"),
        ("clean_pages", "<u8"),
        ("waits", "<u8"),
        ("overruns", "<u8"),
        ("frames", "<u8"),
        ("budget_pages", "<u8"),
        ("file_bytes", "<u8"),
        ("write_error", "<i8"),
        ("evicted_pages", "<u8"),
        ("fetched_pages", "<u8"),
        ("late_moves", "<u8"),
        ("fault_reads", "<u8"),
        ("fault_read_ns", "<u8"),
        ("evict", PAGE_QUEUE_DTYPE),
        ("fetch", PAGE_QUEUE_DTYPE),
    ]
)
"""struct sentinel_paging."""
