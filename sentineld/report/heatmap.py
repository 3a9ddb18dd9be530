# SPDX-License-Identifier: Apache-2.0
"""Shares of live and accessed pages by address and stretch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sentineld.base.units import format_bytes
from sentineld.model.arrays import Floats, Integers
from sentineld.model.profile import page_spans
from sentineld.model.ranges import union
from sentineld.profile.lifetimes import step_lifetimes
from sentineld.profile.sampled_pairs import PAGE_BITS, PAGE_MASK, sampled_pairs, unknown_ranges
from sentineld.profile.steps import boundary_records
from sentineld.profile.trace import Trace

GAP_PAGES = 512
"""Address ranges without tensors or accesses are left out if they have more than this number of
pages; 512 pages of 4 KiB are 2 MiB."""

HEAP_BYTES_MAX = 1 << 44
"""Upper limit on the size of the shim's heap, for the labels of addresses in the heap."""


@dataclass(frozen=True)
class Axis:
    """Pages of several ranges of the address space, concatenated."""

    first: Integers  # first page number of each range, ascending
    past: Integers  # end of each range, exclusive

    @property
    def begins(self) -> Integers:
        """Position on the axis at which each range begins."""
        return np.concatenate([[0], np.cumsum(self.past - self.first)[:-1]]).astype(np.int64)

    @property
    def pages(self) -> int:
        """Length of the axis."""
        return int((self.past - self.first).sum())

    def place(self, pages: Integers) -> Integers:
        """Positions of pages on the axis. A page in a gap gets the position at which the range
        before the gap ends."""
        piece = np.maximum(np.searchsorted(self.first, pages, side="right") - 1, 0)
        first = self.first[piece]
        return self.begins[piece] + np.clip(pages, first, self.past[piece]) - first

    def page(self, place: int) -> int:
        """The page number at a position."""
        piece = int(np.searchsorted(self.begins, place, side="right")) - 1
        return int(self.first[piece] + place - self.begins[piece])


@dataclass(frozen=True)
class Heatmap:
    """The map's axes, and the shares (0..1) of each row's pages that are live, accessed or unknown
    in each stretch. A row is a range of pages. The shares are indexed by [row, stretch]."""

    axis: Axis
    edges: Integers  # row r covers the axis from edges[r] to edges[r + 1]
    live: Floats
    accessed: Floats
    unknown: Floats  # share of pages to which an access may have been missed
    source: str  # "module" if pages were sampled, else "shim"
    page_bytes: int
    heap_base: int  # as in Trace
    arena: tuple[int, int]  # as in Trace

    def address(self, row: int) -> int:
        """Address of a row's first page."""
        return self.axis.page(int(self.edges[row])) * self.page_bytes

    def place(self, row: int) -> str:
        """Label of a row's address: an offset if the address is in the shim's arena or heap."""
        address = self.address(row)
        if 0 <= address - self.arena[0] < self.arena[1]:
            return f"arena+{format_bytes(address - self.arena[0])}"
        if self.heap_base and 0 <= address - self.heap_base < HEAP_BYTES_MAX:
            return f"heap+{format_bytes(address - self.heap_base)}"
        return f"{address:#x}"

    def columns(self, count: int) -> tuple[Floats, Floats, Floats, Integers]:
        """The shares live, accessed and unknown, as arrays indexed by [row, column], and the first
        stretch of each column.

        count: maximum number of columns. A stretch gets several columns if there is room. Otherwise
        a column covers one or more stretches, and each of its shares (live, accessed, unknown) is
        the largest among these stretches.
        """
        shares = (self.live, self.accessed, self.unknown)
        stretches = self.live.shape[1]
        wide = count // stretches
        if wide > 1:
            first = np.repeat(np.arange(stretches), wide)
            live, accessed, unknown = (share[:, first] for share in shares)
        else:
            first = np.unique(np.arange(min(count, stretches)) * stretches // min(count, stretches))
            live, accessed, unknown = (
                np.maximum.reduceat(share, first, axis=1) for share in shares
            )
        return live, accessed, unknown, first


def heatmap(trace: Trace, rows: int) -> Heatmap:
    """The heatmap of the access step. rows: maximum number of rows. Raises SentinelError."""
    step, page_bytes = trace.access_step, trace.page_bytes
    found = step_lifetimes(step, trace.cuts)
    instances = found.instances
    first, past = page_spans(instances, page_bytes)
    count = found.stretch_count
    keys = np.empty(0, np.int64)
    if len(trace.samples):
        keys = sampled_pairs(step, trace.samples).keys
    pages, stretch = keys & PAGE_MASK, keys >> PAGE_BITS
    axis = axis_of(np.concatenate([first, pages]), np.concatenate([past, pages + 1]))
    rows = max(min(rows, axis.pages), 1)
    edges = np.arange(rows + 1) * axis.pages // rows
    sizes = np.maximum(np.diff(edges), 1)

    live = np.zeros((rows, count))
    begin, end = axis.place(first), axis.place(past)
    for at in range(count):
        here = (instances["first_stretch"] <= at) & (instances["last_stretch"] >= at)
        live[:, at] = covered(begin[here], end[here], edges) / sizes
    accessed = np.zeros((rows, count))
    if len(trace.samples):
        row = np.searchsorted(edges, axis.place(pages), side="right") - 1
        np.add.at(accessed, (row, stretch), 1.0)
        accessed /= sizes[:, None]
    else:
        _add_op_accesses(trace, axis, edges, accessed)
        accessed /= sizes[:, None]
    unknown = np.zeros((rows, count))
    if len(trace.samples):
        _add_unknown(trace, axis, edges, unknown)
        unknown /= sizes[:, None]
    source = "module" if len(trace.samples) else "shim"
    return Heatmap(
        axis=axis,
        edges=edges,
        live=live,
        accessed=np.minimum(accessed, 1.0),
        unknown=unknown,
        source=source,
        page_bytes=page_bytes,
        heap_base=trace.heap_base,
        arena=trace.arena,
    )


def _add_op_accesses(trace: Trace, axis: Axis, edges: Integers, accessed: Floats) -> None:
    """Set accessed[row, stretch] to the number of the row's pages that operators access in the
    stretch."""
    step, page_bytes, ops = trace.access_step, trace.page_bytes, trace.op_accesses
    begins = boundary_records(step)["time_ns"].astype(np.int64)
    time = ops["time_ns"].astype(np.int64)
    stretch = np.searchsorted(begins, time, side="right") - 1
    stretch[time >= step.end_ns] = -1
    first, past = page_spans(ops, page_bytes)
    piece = np.searchsorted(axis.first, first, side="right") - 1
    known = (piece >= 0) & (first < axis.past[np.maximum(piece, 0)])
    for at in range(accessed.shape[1]):
        here = known & (stretch == at)
        accessed[:, at] = covered(axis.place(first[here]), axis.place(past[here]), edges)


def _add_unknown(trace: Trace, axis: Axis, edges: Integers, unknown: Floats) -> None:
    """Set unknown[row, stretch] to the number of the row's pages for which an access may have been
    missed in the stretch."""
    first, past = unknown_ranges(trace.access_step, trace.samples)
    stretch = first >> PAGE_BITS
    for at in np.unique(stretch).tolist():
        here = stretch == at
        begin = axis.place(first[here] & PAGE_MASK)
        unknown[:, at] = covered(begin, axis.place(((past[here] - 1) & PAGE_MASK) + 1), edges)


def axis_of(first: Integers, past: Integers) -> Axis:
    """The union of page intervals as an axis; gaps of at most GAP_PAGES are included."""
    if not len(first):
        return Axis(np.zeros(1, np.int64), np.ones(1, np.int64))
    return Axis(*union(first, past, GAP_PAGES))


def covered(begin: Integers, end: Integers, edges: Integers) -> Floats:
    """(rows,): the number of positions in each row that lie in at least one of the intervals.

    begin, end: first position of each interval, and the position after its last one.
    edges: see Heatmap.
    """
    if not len(begin):
        return np.zeros(len(edges) - 1)
    first, past = union(begin, end)
    covered = np.cumsum(past - first)
    places = np.stack([first, past], axis=1).ravel()
    sums = np.stack([covered - (past - first), covered], axis=1).ravel()
    return np.diff(np.interp(edges, places, sums))
