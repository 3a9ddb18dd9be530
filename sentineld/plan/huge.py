# SPDX-License-Identifier: Apache-2.0
"""Choose the parts of the arena that huge pages can back without making more memory resident.

A huge page is allocated and freed as a unit. A block of 2 MiB within one region of the arena may
therefore be a huge page in two cases:

- its pages are allocated and freed together: every tensor that overlaps the block covers all of
  it, and drops either all of it or nothing;
- its pages are never freed: no tensor drops a page of it, and each of its pages holds a tensor at
  some time of the step. Such a block is fully resident from the end of the plan's first step,
  whether or not it is a huge page. The only difference is that a huge page is fully resident
  earlier: from its first access in that step.

A move need not cover a whole block. A block with moved pages therefore consists of small pages,
unless whole_moves is set and every move that touches the block covers all of it.

If the kernel also offers smaller huge pages, the same rules hold for blocks of their size. In a
mapping that allows both sizes, the kernel uses the larger size wherever it fits. Therefore, if all
small blocks of a 2 MiB block qualify but the 2 MiB block as a whole does not, the first of the
small blocks is left out. The kernel then cannot use a huge page of 2 MiB there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from sentineld.model.arrays import Integers, Mask
from sentineld.model.plan import SLOT_PLANNED, Layout, Plan, Range, Space
from sentineld.model.protocol import HUGE_BYTES
from sentineld.plan.drops import drops

UNITS = (HUGE_BYTES, 64 << 10)
"""Alignments, in bytes, of tensors and areas, in descending order. begin_unit() chooses the largest
of these numbers that does not exceed the size of a range. Linux 6.8 added huge pages smaller than
2 MiB; 64 KiB is the smallest size that avoids most of the cost of small pages."""

RANGES_MAX = 1024
"""Maximum number of ranges in Layout.huge. Each range splits a mapping into three, and by default
the kernel allows a process 65530 mappings (vm.max_map_count)."""


def with_huge_pages(
    plan: Plan,
    page_bytes: int,
    sizes: Sequence[int] = (HUGE_BYTES,),
    whole_moves: bool = False,
) -> Layout:
    """The plan's layout, with `huge` set to the ranges that may be backed by huge pages. If there
    are more than RANGES_MAX such ranges, only the RANGES_MAX largest of them are set.

    sizes: sizes of huge pages that the kernel offers, in bytes: HUGE_BYTES, a smaller one, or both.
    whole_moves: whether a moved block may be a huge page if each of its moves covers all of it.
    """
    unit = min(sizes)
    chosen = _blocks(plan, page_bytes, unit, whole_moves)
    if unit < HUGE_BYTES <= max(sizes):
        many = HUGE_BYTES // unit
        large = _blocks(plan, page_bytes, HUGE_BYTES, whole_moves)
        aligned = chosen[: len(large) * many].reshape(-1, many)
        aligned[:, 0] &= large | ~aligned.all(axis=1)
        aligned[large] = True
    first, past = _runs(chosen)
    if len(first) > RANGES_MAX:
        largest = np.sort(np.argsort(first - past, kind="stable")[:RANGES_MAX])
        first, past = first[largest], past[largest]
    ranges = tuple(
        Range(low * unit, (high - low) * unit)
        for low, high in zip(first.tolist(), past.tolist(), strict=True)
    )
    return replace(plan.layout, huge=ranges)


def begin_unit(size: int, page_bytes: int) -> int:
    """Alignment in pages for a range of `size` pages, so that huge pages can back it."""
    return next((unit for one in UNITS if size >= (unit := one // page_bytes) > 0), 1)


def best_begin(end: int, size: int, page_bytes: int) -> int:
    """The first page at or after page `end` that is aligned for a range of `size` pages."""
    unit = begin_unit(size, page_bytes)
    return -(-end // unit) * unit


def _blocks(plan: Plan, page_bytes: int, block_bytes: int, whole_moves: bool) -> Mask:
    """(B,): which of the B whole blocks of this size in the arena may be huge pages."""
    layout, block = plan.layout, block_bytes // page_bytes
    blocks = layout.arena_bytes // block_bytes
    slots = layout.slots[(layout.slots["flags"] & SLOT_PLANNED) != 0]
    begin = slots["offset"].astype(np.int64) // page_bytes
    end = begin - (-slots["bytes"].astype(np.int64) // page_bytes)
    tenants, filling = _touching(begin, end, block, blocks), _filling(begin, end, block, blocks)
    given = drops(layout, page_bytes)
    drop_begin = given["offset"].astype(np.int64) // page_bytes
    drop_end = drop_begin + given["bytes"].astype(np.int64) // page_bytes
    dropped = _touching(drop_begin, drop_end, block, blocks)
    together = (tenants > 0) & (tenants == filling)
    together &= dropped == _filling(drop_begin, drop_end, block, blocks)
    occupied = _counts(begin, end, blocks * block) > 0
    never_freed = occupied.reshape(blocks, block).all(axis=1) & (dropped == 0)
    moves = plan.moves[plan.moves["space"] == Space.ARENA]
    low = moves["offset"].astype(np.int64)
    high = low + moves["bytes"].astype(np.int64)
    moved = _touching(low, high, block_bytes, blocks)
    unmoved = moved == (_filling(low, high, block_bytes, blocks) if whole_moves else 0)
    edges = np.array([(one.offset, one.offset + one.bytes) for one in layout.regions], np.int64)
    edges = edges.reshape(-1, 2)
    in_region = _filling(edges[:, 0], edges[:, 1], block_bytes, blocks) > 0
    found: Mask = (together | never_freed) & unmoved & in_region
    return found


def _touching(begin: Integers, end: Integers, block: int, blocks: int) -> Integers:
    """(blocks,): the number of ranges that overlap each block."""
    return _counts(begin // block, -(-end // block), blocks)


def _filling(begin: Integers, end: Integers, block: int, blocks: int) -> Integers:
    """(blocks,): the number of ranges that contain each block."""
    return _counts(-(-begin // block), end // block, blocks)


def _counts(first: Integers, past: Integers, length: int) -> Integers:
    """(length,): the number of ranges [first, past) that contain each index."""
    first, past = np.minimum(first, length), np.minimum(past, length)
    nonempty = first < past
    change = np.bincount(first[nonempty], minlength=length + 1)
    change -= np.bincount(past[nonempty], minlength=length + 1)
    counts: Integers = np.cumsum(change)[:length]
    return counts


def _runs(chosen: Mask) -> tuple[Integers, Integers]:
    """(index of the first True, index after the last True) of each run of True values."""
    edges = np.diff(chosen.astype(np.int8), prepend=0, append=0)
    return np.flatnonzero(edges > 0), np.flatnonzero(edges < 0)
