# SPDX-License-Identifier: Apache-2.0
"""Samples and operator accesses joined with tensors: the profile of a step.

A sample names a page and an epoch; the epoch is a stretch, and in that stretch
the page belongs to the tensors that were alive in it. Everything is done in
pages of one long axis, stretch after stretch, on which a tensor is one interval
for each stretch it lives in: sorted ends and one searchsorted find the tenants
of all samples at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from sentineld.base.errors import SentinelError
from sentineld.model.arrays import Floats, Integers
from sentineld.model.profile import ACCESS_DTYPE, Profile, page_spans
from sentineld.model.records import (
    ACCESS_UNKNOWN,
    ACCESS_WRITE,
    NO_ACCESS,
    PAGE_BYTES,
    Records,
)
from sentineld.profile.circle import Circle, circle
from sentineld.profile.steps import Step, boundary_records
from sentineld.profile.times import stretch_times

PAGE_BITS = 40
"""Bits of the axis for the page: user addresses have at most 48 bits, pages 12 or more."""

PAGE_MASK = (1 << PAGE_BITS) - 1
"""The page number within a key of the axis."""

LIVES_MAX = 1 << 20
"""Intervals on the axis at one time: a tensor is one for each stretch that it lives in, and a
hundred thousand lasting tensors over a thousand stretches would not fit in memory."""

PARTS_MAX = 1 << 23
"""Parts of the axis that those intervals may be cut into by each other's ends: tensors share no
more than a page at a time, or a place one after the other."""


@dataclass(frozen=True)
class Tenants:
    """Which instances lie on which part of the axis.

    ends: where the set of tenants changes, rising. first: for each part
    between two ends where its tenants begin in `instance` (one more entry than parts).
    """

    ends: Integers
    first: Integers
    instance: Integers

    def find(self, keys: Integers) -> tuple[Integers, Integers]:
        """(row in keys, instance) for each tenant of each key."""
        part = np.searchsorted(self.ends, keys, side="right") - 1
        inside = (part >= 0) & (part < len(self.first) - 1)
        part = np.where(inside, part, 0)
        counts = np.where(inside, self.first[part + 1] - self.first[part], 0)
        rows = np.repeat(np.arange(len(keys)), counts)
        return rows, self.instance[_ranges(self.first[part], counts)]


def build_profile(
    step: Step,
    samples: Records,
    op_accesses: Records,
    layers: Sequence[str],
    page_bytes: int = PAGE_BYTES,
    cuts: Sequence[int] | npt.NDArray[np.uint32] = (),
    timed: Step | None = None,
    heap_base: int = 0,
) -> Profile:
    """The profile of an access step.

    step: the step that was sampled; its boundaries name the epochs. samples:
    SAMPLE_DTYPE, those of other epochs are passed over. op_accesses:
    OP_ACCESS_DTYPE. cuts: cursors of planned boundaries in the step. timed: a
    step that did the same without being sampled (with or without the cuts); its
    times are taken. heap_base: address of the shim's heap.

    A row exists where either source saw the access; its bytes are the
    framework's, its pages the module's. Where only the module saw it, bytes are
    whole pages. Raises SentinelError if the step was not recorded whole, or if
    there are samples but the step has no epochs.
    """
    found = circle(step, cuts)
    if timed is not None:
        found.stretches["time_ns"] = stretch_times(found.stretches, timed)
    ops = _join_ops(found, step, op_accesses, page_bytes)
    pages, unattributed = _NOTHING, 0
    if len(samples):
        pages, unattributed = _join_samples(found, step, samples, page_bytes)
    keys = np.unique(np.concatenate([ops.key, pages.key]))
    amounts = np.zeros((3, len(keys)))  # read, written, pages
    op_rows, page_rows = np.searchsorted(keys, ops.key), np.searchsorted(keys, pages.key)
    np.add.at(amounts, (ops.column, op_rows), ops.amount)
    by_module_alone = np.isin(pages.key, ops.key, invert=True)
    np.add.at(
        amounts,
        (pages.column[by_module_alone], page_rows[by_module_alone]),
        pages.amount[by_module_alone] * page_bytes,
    )
    touched = np.bincount(page_rows, pages.amount, minlength=len(keys))
    amounts[2] = np.where(touched > 0, np.maximum(np.rint(touched), 1), 0)
    rows = np.zeros(len(keys), ACCESS_DTYPE)
    rows["stretch"], rows["tensor"] = np.divmod(keys, max(len(found.tensors), 1))
    for name, amount in zip(("bytes_read", "bytes_written", "pages"), amounts, strict=True):
        rows[name] = np.rint(amount)
    sources = (("module", len(samples)), ("shim", len(op_accesses)))
    return replace(
        found.profile(layers, page_bytes, heap_base),
        accesses=rows,
        source="+".join(name for name, count in sources if count) or "none",
        unattributed_pages=unattributed,
    )


@dataclass(frozen=True)
class _Joined:
    """Amounts of access rows: key = stretch * tensors + tensor; column 0 read, 1 written."""

    key: Integers
    column: Integers
    amount: Floats


_NOTHING = _Joined(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))


def find_tenants(found: Circle, keys: Integers, page_bytes: int) -> tuple[Integers, Integers]:
    """(row in keys, instance) for each tensor of each key. keys: page + (stretch << PAGE_BITS)."""
    first = found.instances["first_stretch"].astype(np.int64)
    last = found.instances["last_stretch"].astype(np.int64)
    stretch = keys >> PAGE_BITS
    # Whoever lives all the time needs one interval of pages only, in stretch 0.
    always = (first == 0) & (last == found.stretch_count - 1)
    tenants = _tenants(found, np.where(always, 0, 1), np.zeros_like(last), page_bytes)
    row, instance = tenants.find(keys & PAGE_MASK)
    rows, instances = [row], [instance]
    first[always] = found.stretch_count
    for begin, end in _pieces(first, last, found.stretch_count):
        inside = np.flatnonzero((stretch >= begin) & (stretch < end))
        if len(inside):
            tenants = _tenants(
                found, np.maximum(first, begin), np.minimum(last, end - 1), page_bytes
            )
            row, instance = tenants.find(keys[inside])
            rows.append(inside[row])
            instances.append(instance)
    return np.concatenate(rows), np.concatenate(instances)


def _pieces(first: Integers, last: Integers, count: int) -> list[tuple[int, int]]:
    """Ranges of stretches, end exclusive, in each of which few enough tensors live from first to
    last (none where first > last)."""
    lives = first <= last
    change = np.bincount(first[lives], minlength=count + 1)
    change -= np.bincount(last[lives] + 1, minlength=count + 1)
    piece = np.cumsum(np.cumsum(change[:count])) // LIVES_MAX
    begins = np.flatnonzero(np.diff(piece, prepend=-1)).tolist()
    return list(zip(begins, [*begins[1:], count], strict=True))


def _tenants(found: Circle, first: Integers, last: Integers, page_bytes: int) -> Tenants:
    """Instances on the axis of pages, in the stretches first to last of each (none where first is
    greater than last)."""
    instances = found.instances
    lives = np.maximum(last - first + 1, 0)
    instance = np.repeat(np.arange(len(instances)), lives)
    stretch = _ranges(first, lives)
    first_page, past_page = page_spans(instances, page_bytes)
    begin = first_page[instance] + (stretch << PAGE_BITS)
    end = past_page[instance] + (stretch << PAGE_BITS)
    ends = np.unique(np.concatenate([begin, end]))
    low = np.searchsorted(ends, begin)
    parts = np.searchsorted(ends, end) - low
    if int(parts.sum()) > PARTS_MAX:
        raise SentinelError(
            "failed", "tensors of the step lie upon each other", "its records can't be true"
        )
    part = _ranges(low, parts)
    order = np.argsort(part, kind="stable")
    return Tenants(
        ends=ends,
        first=np.searchsorted(part[order], np.arange(max(len(ends), 2))),
        instance=np.repeat(instance, parts)[order],
    )


def sampled_pairs(step: Step, samples: Records) -> tuple[Integers, npt.NDArray[np.bool_]]:
    """The step's sampled pairs of stretch and page as rising keys of the axis, and which of them
    were seen written. Raises SentinelError if the step has no epochs."""
    epochs = boundary_records(step)["address"].astype(np.int64)
    if not np.all(epochs > 0):
        raise SentinelError(
            "failed", f"step {step.number} passed boundaries without an epoch", "sample another"
        )
    accessed = samples[(samples["flags"] & NO_ACCESS) == 0]
    first, inside = _first_keys(epochs, step.end_epoch, accessed)
    wrote = (accessed["flags"][inside] & ACCESS_WRITE) != 0
    # One record of a huge page stands for all its pages.
    pages = accessed["more_pages"][inside].astype(np.int64) + 1
    keys, row = np.unique(_ranges(first, pages), return_inverse=True)
    return keys, np.bincount(row, np.repeat(wrote, pages), minlength=len(keys)) > 0


def unknown_pairs(step: Step, samples: Records) -> int:
    """How many pairs of stretch and page may have been accessed without having been seen: pages
    that somebody else un-armed, or that can't be armed. Raises SentinelError as sampled_pairs()."""
    seen, _ = sampled_pairs(step, samples)
    first, past = unknown_ranges(step, samples)
    if not len(first):
        return 0
    # Overlapping ones count once: each only from where those before it end.
    order = np.argsort(first, kind="stable")
    first, past = first[order], np.maximum.accumulate(past[order])
    begin = np.maximum(first, np.append(first[0], past[:-1]))
    counts = past - begin - (np.searchsorted(seen, past) - np.searchsorted(seen, begin))
    return int(counts.sum())


def unknown_ranges(step: Step, samples: Records) -> tuple[Integers, Integers]:
    """Keys, first and past (exclusive), of the pages in the step's stretches of which it is not
    known whether they were accessed; they may overlap, and pages of them may have been seen."""
    epochs = boundary_records(step)["address"].astype(np.int64)
    unknown = samples[(samples["flags"] & ACCESS_UNKNOWN) != 0]
    first, inside = _first_keys(epochs, step.end_epoch, unknown)
    return first, first + unknown["more_pages"][inside].astype(np.int64) + 1


def _first_keys(
    epochs: Integers, end_epoch: int, samples: Records
) -> tuple[Integers, npt.NDArray[np.bool_]]:
    """The key of each sample's first page, for those in the step's epochs; and which are."""
    epoch = samples["epoch"].astype(np.int64)
    stretch = np.searchsorted(epochs, epoch, side="right") - 1
    inside = (stretch >= 0) & (epoch < (end_epoch or np.iinfo(np.int64).max))
    return samples["page"].astype(np.int64)[inside] + (stretch[inside] << PAGE_BITS), inside


def _join_samples(
    found: Circle, step: Step, samples: Records, page_bytes: int
) -> tuple[_Joined, int]:
    """Access rows in pages, and how many page x stretch pairs met no tensor."""
    keys, written = sampled_pairs(step, samples)
    rows, instance = find_tenants(found, keys, page_bytes)
    page_start = (keys & PAGE_MASK) * page_bytes
    start = found.instances["address"].astype(np.int64)[instance]
    size = found.instances["bytes"].astype(np.int64)[instance]
    shared = np.minimum(start + size, page_start[rows] + page_bytes) - np.maximum(
        start, page_start[rows]
    )
    total = np.bincount(rows, shared, minlength=len(keys))
    tensor = found.instances["tensor"].astype(np.int64)[instance]
    key = (keys[rows] >> PAGE_BITS) * len(found.tensors) + tensor
    joined = _Joined(key, written[rows].astype(np.int64), shared / total[rows])
    return joined, int(np.count_nonzero(np.bincount(rows, minlength=len(keys)) == 0))


def _join_ops(found: Circle, step: Step, op_accesses: Records, page_bytes: int) -> _Joined:
    """Access rows in bytes, of the tensors at the operators' addresses and times."""
    begins = boundary_records(step)["time_ns"].astype(np.int64)
    time = op_accesses["time_ns"].astype(np.int64)
    ops = op_accesses[(time >= begins[0]) & (time < step.end_ns)]
    time = ops["time_ns"].astype(np.int64)
    stretch = np.searchsorted(begins, time, side="right") - 1
    address = ops["address"].astype(np.int64)
    rows, instance = holders(found, stretch, address, time, page_bytes)
    tensor = found.instances["tensor"].astype(np.int64)[instance]
    return _Joined(
        key=stretch[rows] * len(found.tensors) + tensor,
        column=ops["write"][rows].astype(np.int64),
        amount=ops["bytes"][rows].astype(np.float64),
    )


def holders(
    found: Circle, stretch: Integers, address: Integers, time: Integers, page_bytes: int
) -> tuple[Integers, Integers]:
    """(row, instance) of the tensor that was alive at each address and time (ns) of a stretch;
    where times disagree (an output is born within its operator), the youngest of the stretch.
    Rows without a tensor are left out."""
    keys = address // page_bytes + (stretch << PAGE_BITS)
    rows, instance = find_tenants(found, keys, page_bytes)
    start = found.instances["address"].astype(np.int64)[instance]
    size = found.instances["bytes"].astype(np.int64)[instance]
    holds = (address[rows] >= start) & (address[rows] < start + size)
    rows, instance = rows[holds], instance[holds]
    born = found.instances["born_ns"][instance]
    now = time.astype(np.uint64)[rows]
    alive = (born <= now) & (now < found.instances["dead_ns"][instance])
    order = np.lexsort((born, alive, rows))
    last = order[np.append(np.diff(rows[order]) != 0, np.full(min(len(rows), 1), True))]
    return rows[last], instance[last]


def _ranges(first: Integers, counts: Integers) -> Integers:
    """first[0], first[0] + 1, ... counts[0] of them, then first[1], ..."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    ranges: Integers = np.arange(total) + np.repeat(first - (ends - counts), counts)
    return ranges
