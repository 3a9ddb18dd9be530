# SPDX-License-Identifier: Apache-2.0
"""Lay out the arena of a plan in which a part of a tensor may be born fast and the rest slow.

Tensors that are born fast as a whole lie in one region; tensors that are born slow lie in other
regions. A tensor whose first pages are born fast and whose other pages are born slow lies across
the line between a fast region and the slow region after it. Tensors that are never alive together
can share a line.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sentineld.model.arrays import Integers, Mask
from sentineld.model.plan import SLOT_DROP, SLOT_DTYPE, SLOT_PLANNED, Layout, Region
from sentineld.model.profile import Profile
from sentineld.plan.huge import begin_unit, best_begin
from sentineld.plan.items import tensor_pages
from sentineld.plan.layout import area_offsets
from sentineld.plan.packing import alive_together
from sentineld.plan.turnover import life_moments
from sentineld.policies.auto.reuse import reusing_offsets


@dataclass(frozen=True)
class Births:
    """The tiers on which the T tensors of the profile are born."""

    rows: Integers
    """The tensors that lie in the arena: rows of the profile's tensors."""

    fast_pages: Integers
    """(T,): number of pages born fast, counted from the tensor's first page."""

    moved: Mask
    """(T,): whether any page of the tensor is moved."""

    changing_pages: Integers
    """(T,): number of pages that are on another tier at the tensor's death than at its birth."""

    free: Integers
    """(M,): number of dead pages that may stay in fast memory at each moment (plan/turnover.py)."""


def lay_out(profile: Profile, births: Births) -> Layout:
    """Place the tensors in a layout without waits.

    If a tensor is born fast or is moved, its pages are dropped when it dies, so that dead pages
    take no fast memory. Later, keep() (plan/keep.py) removes the drops of pages for which memory
    has room.
    """
    page, pages = profile.page_bytes, tensor_pages(profile)
    slots = np.zeros(profile.slot_count, SLOT_DTYPE)
    slotted = profile.tensors["slot"] >= 0
    tensors = profile.tensors[slotted]
    slots["bytes"][tensors["slot"]] = tensors["bytes"]
    fast = births.fast_pages[births.rows]
    whole = (fast > 0) & (fast >= pages[births.rows])
    regions: list[Region] = []
    end = 0

    def place(rows: Integers, offsets: Integers) -> None:
        slot = profile.tensors["slot"][rows]
        slots["offset"][slot] = (end + offsets) * page
        dropped = births.moved[rows] | (births.fast_pages[rows] > 0)
        slots["flags"][slot] = SLOT_PLANNED | np.where(dropped, SLOT_DROP, 0)

    moved = births.moved[births.rows]
    for name, tier, rows in (
        ("fast-born", 0, births.rows[whole]),
        ("slow-born", 1, births.rows[(fast == 0) & ~moved]),
        ("slow-born, moved", 1, births.rows[(fast == 0) & moved]),
    ):
        if len(rows):
            offsets, size = (
                area_offsets(profile, rows, apart=True) if tier else _reusing(profile, births, rows)
            )
            end = best_begin(end, size, page)
            place(rows, offsets)
            regions.append(Region(end * page, size * page, tier, name))
            end += size
    across = births.rows[(fast > 0) & ~whole]
    for line in _lines(profile, across):
        before = int(births.fast_pages[line].max())
        behind = int((pages[line] - births.fast_pages[line]).max())
        end = best_begin(end, before + behind, page)
        place(line, before - births.fast_pages[line])
        regions.append(Region(end * page, before * page, 0, "fast-born part"))
        regions.append(Region((end + before) * page, behind * page, 1, "slow-born part"))
        end += before + behind
    is_cut = profile.stretches["cut"]
    return Layout(
        slots=slots,
        cuts=profile.stretches["cursor"][is_cut].astype(np.uint32),
        regions=tuple(regions),
        waits=np.full(profile.stretch_count, -1, np.int32),
        arena_bytes=end * page,
        heap_tier=1,
    )


def _reusing(profile: Profile, births: Births, rows: Integers) -> tuple[Integers, int]:
    moments = len(births.free)
    birth, death = life_moments(profile.tensors[rows])
    pages = tensor_pages(profile)[rows]
    stay = 2 * births.changing_pages[rows] < pages
    units = np.array([begin_unit(many, profile.page_bytes) for many in pages.tolist()], np.int64)
    return reusing_offsets(pages, birth, death % max(moments, 1), stay, births.free, units)


def _lines(profile: Profile, tensors: Integers) -> list[Integers]:
    """Divide the tensors into sets. The tensors of a set are placed across the same line between a
    fast and a slow region, so no two of them may be alive together."""
    birth = profile.tensors["birth_event"].astype(np.int64)
    death = profile.tensors["death_event"].astype(np.int64)
    lines: list[list[int]] = []
    for row in tensors[np.argsort(birth[tensors], kind="stable")].tolist():
        for line in lines:
            together = alive_together(birth[line], death[line], int(birth[row]), int(death[row]))
            if not together.any():
                line.append(row)
                break
        else:
            lines.append([row])
    return [np.array(line, dtype=np.int64) for line in lines]
