# SPDX-License-Identifier: Apache-2.0
"""Which parts of the arena may be made of huge pages, so that no page is there that otherwise would
not be.

A huge page comes and goes as a whole. So a block of 2 MiB may be one where pages come and go
together: every tensor that lies in it takes all of it, and gives back all of it or nothing. Or
where they only come: nobody gives a page of it back, and tensors lie on all of them. Such a block
is whole after the plan's first step at the latest and is charged as a whole in every step, so
that in the first one it may be there earlier than its tensors. What is moved is moved page by
page and stays small, unless moves are known to take whole blocks.

Where the kernel offers smaller huge pages, too, the same holds for their blocks. In a mapping that
may have both it takes the larger ones wherever they fit; so of each 2 MiB that may have smaller
ones alone one block is left out.
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
"""Bytes: tensors of at least so many begin at a multiple. Linux has huge pages of more sizes since
6.8; 64 KiB is the least that saves most of what small pages cost."""

RANGES_MAX = 1024
"""Each cuts a mapping in three, of which a process may have 65530 (vm.max_map_count)."""


def with_huge_pages(
    plan: Plan,
    page_bytes: int,
    sizes: Sequence[int] = (HUGE_BYTES,),
    whole_moves: bool = False,
) -> Layout:
    """The plan's layout with the ranges that may be huge pages: the largest ones, if there are more
    than RANGES_MAX. sizes: in bytes, what the kernel makes huge pages of, HUGE_BYTES and at most
    one less. whole_moves: a block may be moved, too, if each move takes all of it."""
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
    """At a multiple of how many pages something of so many begins, so that it can be made of huge
    pages."""
    return next((unit for one in UNITS if size >= (unit := one // page_bytes) > 0), 1)


def best_begin(end: int, size: int, page_bytes: int) -> int:
    """Where to begin with so many pages that come after `end`, in pages."""
    unit = begin_unit(size, page_bytes)
    return -(-end // unit) * unit


def _blocks(plan: Plan, page_bytes: int, block_bytes: int, whole_moves: bool) -> Mask:
    """Which blocks of this size of the arena may be huge pages, but for what is left at its end."""
    layout, block = plan.layout, block_bytes // page_bytes
    blocks = layout.arena_bytes // block_bytes
    slots = layout.slots[(layout.slots["flags"] & SLOT_PLANNED) != 0]
    begin = slots["offset"].astype(np.int64) // page_bytes
    end = begin - (-slots["bytes"].astype(np.int64) // page_bytes)
    tenants, filling = _touching(begin, end, block, blocks), _filling(begin, end, block, blocks)
    given = drops(layout, page_bytes)
    from_ = given["offset"].astype(np.int64) // page_bytes
    until = from_ + given["bytes"].astype(np.int64) // page_bytes
    dropped = _touching(from_, until, block, blocks)
    together = (tenants > 0) & (tenants == filling)
    together &= dropped == _filling(from_, until, block, blocks)
    taken = _counts(begin, end, blocks * block) > 0
    only_come = taken.reshape(blocks, block).all(axis=1) & (dropped == 0)
    moves = plan.moves[plan.moves["space"] == Space.ARENA]
    low = moves["offset"].astype(np.int64)
    high = low + moves["bytes"].astype(np.int64)
    moved = _touching(low, high, block_bytes, blocks)
    still = moved == (_filling(low, high, block_bytes, blocks) if whole_moves else 0)
    edges = np.array([(one.offset, one.offset + one.bytes) for one in layout.regions], np.int64)
    edges = edges.reshape(-1, 2)
    in_region = _filling(edges[:, 0], edges[:, 1], block_bytes, blocks) > 0
    found: Mask = (together | only_come) & still & in_region
    return found


def _touching(begin: Integers, end: Integers, block: int, blocks: int) -> Integers:
    """(blocks,): how many of the ranges have any of each block."""
    return _counts(begin // block, -(-end // block), blocks)


def _filling(begin: Integers, end: Integers, block: int, blocks: int) -> Integers:
    """(blocks,): how many of the ranges have all of each block."""
    return _counts(-(-begin // block), end // block, blocks)


def _counts(first: Integers, past: Integers, length: int) -> Integers:
    """(length,): how many of the ranges [first, past) hold each index; those that are empty or lie
    beyond it hold none."""
    first, past = np.minimum(first, length), np.minimum(past, length)
    there = first < past
    change = np.bincount(first[there], minlength=length + 1)
    change -= np.bincount(past[there], minlength=length + 1)
    counts: Integers = np.cumsum(change)[:length]
    return counts


def _runs(chosen: Mask) -> tuple[Integers, Integers]:
    """(first, past) of each run of chosen ones."""
    edges = np.diff(chosen.astype(np.int8), prepend=0, append=0)
    return np.flatnonzero(edges > 0), np.flatnonzero(edges < 0)
