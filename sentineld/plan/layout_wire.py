# SPDX-License-Identifier: Apache-2.0
"""Convert a layout to and from the contents of the layout memfd (struct sentinel_layout)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sentineld.base.errors import SentinelError
from sentineld.model import protocol
from sentineld.model.plan import PART_DTYPE, SLOT_DTYPE, Layout
from sentineld.model.protocol import LayoutFlag, WaitFlag
from sentineld.model.tiers import Tiers

_CUT_DTYPE = np.dtype("<u4")


class Tables(NamedTuple):
    """The parts of a layout's memfd that only emulated and paged tiers have."""

    accesses: npt.NDArray[np.void] | None = None
    """ACCESS_DTYPE; None: the tiers are the kernel's nodes."""
    fast_pages: int | None = None
    """On emulated tiers: the size of the fast tier. On paged tiers: the pager's budget. None:
    unlimited."""
    moves: npt.NDArray[np.void] | None = None
    """PAGER_MOVE_DTYPE: moves that the pager carries out; None: the daemon moves all pages."""


NO_TABLES = Tables()


@dataclass(frozen=True)
class WireLayout:
    """The unpacked contents of a layout memfd. model/protocol.py defines the dtypes."""

    layout_id: int
    arena_bytes: int
    heap_node: int  # node on which the heap's pages are born; -1: the kernel chooses
    slots: npt.NDArray[np.void]  # SLOT_DTYPE
    cuts: npt.NDArray[np.uint32]  # allocation cursors
    regions: npt.NDArray[np.void]  # REGION_DTYPE
    waits: npt.NDArray[np.void]  # WAIT_DTYPE, one row per boundary
    parts: npt.NDArray[np.void]  # PART_DTYPE
    huge: npt.NDArray[np.void]  # HUGE_DTYPE
    # ACCESS_DTYPE: the accesses and their delays; None: the tiers are the kernel's nodes.
    accesses: npt.NDArray[np.void] | None = None
    fast_pages: int | None = None  # see Tables
    moves: npt.NDArray[np.void] | None = None  # PAGER_MOVE_DTYPE; None: no moves


def pack_layout(
    layout: Layout,
    layout_id: int,
    tiers: Tiers,
    boundary_count: int,
    accesses: npt.NDArray[np.void] | None = None,
    fast_pages: int | None = None,
    moves: npt.NDArray[np.void] | None = None,
) -> bytes:
    """Return the contents of the layout memfd. A tier is written as the id of its first node.

    accesses, fast_pages, moves: see Tables. A fast_pages of 0 is written as 1, because 0 in the
        header means unlimited.

    Raises ValueError if the layout does not have boundary_count boundaries or has an invalid tier.
    """
    if len(layout.waits) != boundary_count:
        raise ValueError(f"{len(layout.waits)} waits for {boundary_count} boundaries")
    regions = np.zeros(len(layout.regions), protocol.REGION_DTYPE)
    for at, region in enumerate(layout.regions):
        regions[at] = (region.offset, region.bytes, _node(tiers, region.tier), 0)
    waits = _wait_table(layout.waits)
    huge = np.array([(one.offset, one.bytes) for one in layout.huge], protocol.HUGE_DTYPE)
    parts = [
        layout.slots.astype(SLOT_DTYPE).tobytes(),
        layout.cuts.astype(_CUT_DTYPE).tobytes(),
        regions.tobytes(),
        waits.tobytes(),
        layout.parts.astype(PART_DTYPE).tobytes(),
        accesses.tobytes() if accesses is not None else b"",
        huge.tobytes(),
        moves.tobytes() if moves is not None else b"",
    ]
    header = np.zeros(1, protocol.LAYOUT_DTYPE)
    header["magic"] = protocol.LAYOUT_MAGIC
    header["version"] = protocol.SHIM_VERSION
    header["slot_count"] = len(layout.slots)
    header["layout_id"] = layout_id
    header["arena_bytes"] = layout.arena_bytes
    header["cut_count"] = len(layout.cuts)
    header["region_count"] = len(regions)
    header["boundary_count"] = boundary_count
    header["heap_node"] = _node(tiers, layout.heap_tier)
    header["flags"] = LayoutFlag.EMULATED if accesses is not None else 0
    header["part_count"] = len(layout.parts)
    header["access_count"] = len(accesses) if accesses is not None else 0
    header["huge_count"] = len(huge)
    header["move_count"] = len(moves) if moves is not None else 0
    header["fast_pages"] = 0 if fast_pages is None else max(fast_pages, 1)
    end = _aligned(protocol.LAYOUT_DTYPE.itemsize)
    names = ("slots", "cuts", "regions", "waits", "parts", "accesses", "huge", "moves")
    for name, part in zip(names, parts, strict=True):
        header[f"{name}_offset"] = end
        end += _aligned(len(part))
    header["total_bytes"] = end
    head = header.tobytes()
    return b"".join(part.ljust(_aligned(len(part)), b"\0") for part in (head, *parts))


def unpack_layout(data: bytes) -> WireLayout:
    """Read the contents of a layout memfd. Raises SentinelError("protocol-mismatch") if they
    are not a valid layout."""
    size = protocol.LAYOUT_DTYPE.itemsize
    if len(data) < size:
        raise _mismatch(f"it has only {len(data)} bytes")
    header = np.frombuffer(data, protocol.LAYOUT_DTYPE, 1)[0]
    if header["magic"] != protocol.LAYOUT_MAGIC or header["version"] != protocol.SHIM_VERSION:
        raise _mismatch("wrong magic or version")
    if header["total_bytes"] != len(data):
        raise _mismatch(f"it has {len(data)} bytes instead of {header['total_bytes']}")

    def part(name: str, dtype: np.dtype[Any], count: int) -> npt.NDArray[Any]:
        offset = int(header[f"{name}_offset"])
        if offset % 8 or offset + dtype.itemsize * count > len(data):
            raise _mismatch(f"its {name} are misaligned or out of bounds")
        return np.frombuffer(data, dtype, count, offset)

    return WireLayout(
        layout_id=int(header["layout_id"]),
        arena_bytes=int(header["arena_bytes"]),
        heap_node=int(header["heap_node"]),
        slots=part("slots", protocol.SLOT_DTYPE, int(header["slot_count"])),
        cuts=part("cuts", _CUT_DTYPE, int(header["cut_count"])),
        regions=part("regions", protocol.REGION_DTYPE, int(header["region_count"])),
        waits=part("waits", protocol.WAIT_DTYPE, int(header["boundary_count"])),
        parts=part("parts", protocol.PART_DTYPE, int(header["part_count"])),
        huge=part("huge", protocol.HUGE_DTYPE, int(header["huge_count"])),
        accesses=part("accesses", protocol.ACCESS_DTYPE, int(header["access_count"]))
        if header["flags"] & LayoutFlag.EMULATED
        else None,
        fast_pages=int(header["fast_pages"]) or None,
        moves=part("moves", protocol.PAGER_MOVE_DTYPE, int(header["move_count"]))
        if header["move_count"]
        else None,
    )


def _wait_table(waits: npt.NDArray[np.int32]) -> npt.NDArray[np.void]:
    """Convert Layout.waits to WAIT_DTYPE; a flag marks waits that refer to the previous step."""
    asked = waits >= 0
    before = asked & (waits > np.arange(len(waits)))
    table = np.zeros(len(waits), protocol.WAIT_DTYPE)
    table["boundary"] = np.where(asked, waits, 0)
    table["flags"] = asked * int(WaitFlag.ENABLED) + before * int(WaitFlag.STEP_BEFORE)
    return table


def _node(tiers: Tiers, tier: int | None) -> int:
    if tier is None:
        return -1
    if not 0 <= tier < len(tiers.tiers):
        raise ValueError(f"tier {tier} does not exist")
    return tiers.tiers[tier].nodes[0]


def _aligned(size: int) -> int:
    return -(-size // 8) * 8


def _mismatch(what: str) -> SentinelError:
    return SentinelError("protocol-mismatch", f"not a valid layout: {what}")
