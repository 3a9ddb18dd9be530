# SPDX-License-Identifier: Apache-2.0
"""Attribution of samples and operator accesses to tensors: the profile of a step.

A sample has a page and an epoch. The epoch identifies a stretch, and the access
is attributed to the tensors that are on the page in this stretch. All (stretch, page)
pairs are mapped to keys on one axis, on which a tensor has one interval for each
stretch of its lifetime. numpy.searchsorted() over the beginnings and ends of the intervals
then finds the tensors of many samples in one call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from sentineld.base.errors import SentinelError
from sentineld.model.arrays import Floats, Integers
from sentineld.model.profile import ACCESS_DTYPE, Profile, page_spans
from sentineld.model.ranges import ranges
from sentineld.model.records import PAGE_BYTES, Records
from sentineld.profile.lifetimes import StepLifetimes, step_lifetimes
from sentineld.profile.missed import filled_pages, unknown_pages
from sentineld.profile.placed import note_placements
from sentineld.profile.sampled_pairs import PAGE_BITS, PAGE_MASK, sample_parts, sampled_pairs
from sentineld.profile.steps import Step, boundary_records
from sentineld.profile.times import stretch_times

LIVES_MAX = 1 << 20
"""Approximate maximum number of intervals in memory at one time. A tensor has one interval per
stretch of its lifetime, and the intervals of 100,000 tensors in 1,000 stretches would not fit in
memory. Therefore ranges of stretches are processed one after another (_pieces())."""

PARTS_MAX = 1 << 23
"""Maximum number of pieces of intervals. The beginnings and ends of all intervals cut the axis into
parts, and each interval has one piece in every part that it covers. Real tensors overlap by at most
a page, or use the same address one after another, so they have few pieces. With corrupt records,
the number of pieces can grow with the square of the number of tensors."""


AMOUNTS = ("bytes_read", "bytes_written", "pages", "page_accesses")
"""The columns of ACCESS_DTYPE that hold amounts of bytes, pages or accesses."""


@dataclass(frozen=True)
class Tenants:
    """The tenants of each part of the axis: the instances (INSTANCE_DTYPE) that cover the part.

    The module's docstring describes the axis. Parts lie between consecutive elements of `ends`.
    """

    ends: Integers  # keys at which the set of tenants changes, ascending
    # Index in `instance` of each part's first tenant. The last element is len(instance).
    first: Integers
    instance: Integers  # the tenants of all parts, part by part, as rows of the instances

    def find(self, keys: Integers) -> tuple[Integers, Integers]:
        """Pairs (index in keys, instance), one for each tenant of each key."""
        part = np.searchsorted(self.ends, keys, side="right") - 1
        inside = (part >= 0) & (part < len(self.first) - 1)
        part = np.where(inside, part, 0)
        counts = np.where(inside, self.first[part + 1] - self.first[part], 0)
        rows = np.repeat(np.arange(len(keys)), counts)
        return rows, self.instance[ranges(self.first[part], counts)]


def build_profile(
    step: Step,
    samples: Records,
    op_accesses: Records,
    layers: Sequence[str],
    page_bytes: int = PAGE_BYTES,
    cuts: Sequence[int] | npt.NDArray[np.uint32] = (),
    timed: Step | None = None,
    heap_base: int = 0,
    incomplete: bool = False,
) -> Profile:
    """The profile of an access step.

    step: the sampled step; its boundary records contain the epochs.
    samples: SAMPLE_DTYPE; those of epochs outside the step are ignored.
    op_accesses: OP_ACCESS_DTYPE; those outside the step are ignored.
    cuts: allocation cursors of planned boundaries in the step.
    timed: a step of the same structure that was not sampled. The stretches get their times from
        this step. It may lack the boundaries at `cuts`.
    heap_base: address of the shim's heap.
    incomplete: whether samples of the step are missing, for example because the module's log was
        full.

    Profile.accesses has a row for each tensor and stretch for which the framework or the module
    reported an access. The row's bytes are those that the framework reported, and its pages are
    those that the module sampled. If only the module reported an access, the bytes are those of the
    row's pages. A sampled page and its accesses are divided among the tensors on it, in proportion
    to their bytes on the page (_join_samples()). Pages for which the module may have missed an
    access also count as accessed, up to the number of pages that the reported bytes fill
    (missed.py).

    Raises SentinelError if the step was not recorded completely, if too many of its tensors overlap
    (see PARTS_MAX), or if there are samples but a boundary of the step has no epoch.
    """
    found = step_lifetimes(step, cuts)
    note_placements(found.tensors, step.records)
    if timed is not None:
        found.stretches["time_ns"] = stretch_times(found.stretches, timed)
    ops, instances = _join_ops(found, step, op_accesses, page_bytes)
    pages, accesses, unattributed = _NOTHING, np.zeros(0), 0
    if len(samples):
        pages, accesses, unattributed = _join_samples(found, step, samples, page_bytes)
    keys = np.unique(np.concatenate([ops.key, pages.key]))
    amounts = np.zeros((4, len(keys)))  # in the order of AMOUNTS
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
    seen = np.bincount(page_rows, accesses, minlength=len(keys))
    amounts[3] = np.maximum(np.rint(seen), amounts[2])
    if len(samples):
        missed = np.full(len(keys), np.inf if incomplete else 0.0)
        if not incomplete:
            pairs, unknown = unknown_pages(found, step, samples, ops.key, instances, page_bytes)
            missed[np.searchsorted(keys, pairs)] = unknown
        sizes = found.tensors["bytes"].astype(np.int64)[keys % max(len(found.tensors), 1)]
        filled = filled_pages(amounts[0], amounts[1], sizes, page_bytes)
        amounts[2:] += np.maximum(np.minimum(filled - amounts[2], missed), 0)
    rows = np.zeros(len(keys), ACCESS_DTYPE)
    rows["stretch"], rows["tensor"] = np.divmod(keys, max(len(found.tensors), 1))
    for name, amount in zip(AMOUNTS, amounts, strict=True):
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
    """Amounts to add to the profile's rows of accesses; several entries can belong to one row."""

    key: Integers  # stretch * number of tensors + tensor
    column: Integers  # index in AMOUNTS: 0 (read) or 1 (written)
    amount: Floats  # bytes or pages


_NOTHING = _Joined(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))


def find_tenants(
    found: StepLifetimes, keys: Integers, page_bytes: int
) -> tuple[Integers, Integers]:
    """Pairs (index in keys, instance), one for each tenant of each key, that is, each instance that
    is on the key's page in the key's stretch.

    keys: page + (stretch << PAGE_BITS).
    """
    first = found.instances["first_stretch"].astype(np.int64)
    last = found.instances["last_stretch"].astype(np.int64)
    stretch = keys >> PAGE_BITS
    # Tensors that live in all stretches are looked up by the page alone, as if all accesses were in
    # stretch 0.
    always = (first == 0) & (last == found.stretch_count - 1)
    tenants = _tenants(found, np.where(always, 0, 1), np.zeros_like(last), page_bytes)
    row, instance = tenants.find(keys & PAGE_MASK)
    rows, instances = [row], [instance]
    first[always] = found.stretch_count
    # Only the stretches of these keys need intervals.
    first = np.maximum(first, stretch.min(initial=found.stretch_count))
    last = np.minimum(last, stretch.max(initial=-1))
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
    """Ranges of stretches, end exclusive, each with at most about LIVES_MAX intervals.

    first, last: the first and last stretch of each instance; first > last: no stretch.
    """
    lives = first <= last
    change = np.bincount(first[lives], minlength=count + 1)
    change -= np.bincount(last[lives] + 1, minlength=count + 1)
    piece = np.cumsum(np.cumsum(change[:count])) // LIVES_MAX
    begins = np.flatnonzero(np.diff(piece, prepend=-1)).tolist()
    return list(zip(begins, [*begins[1:], count], strict=True))


def _tenants(found: StepLifetimes, first: Integers, last: Integers, page_bytes: int) -> Tenants:
    """Place instances on the axis (see the module's docstring): each instance gets an interval in
    each of the stretches first to last, and none if first > last."""
    instances = found.instances
    lives = np.maximum(last - first + 1, 0)
    instance = np.repeat(np.arange(len(instances)), lives)
    stretch = ranges(first, lives)
    first_page, past_page = page_spans(instances, page_bytes)
    begin = first_page[instance] + (stretch << PAGE_BITS)
    end = past_page[instance] + (stretch << PAGE_BITS)
    ends = np.unique(np.concatenate([begin, end]))
    low = np.searchsorted(ends, begin)
    parts = np.searchsorted(ends, end) - low
    if int(parts.sum()) > PARTS_MAX:
        raise SentinelError(
            "failed", "too many tensors of the step overlap", "its records are corrupt"
        )
    part = ranges(low, parts)
    order = np.argsort(part, kind="stable")
    return Tenants(
        ends=ends,
        first=np.searchsorted(part[order], np.arange(max(len(ends), 2))),
        instance=np.repeat(instance, parts)[order],
    )


def _join_samples(
    found: StepLifetimes, step: Step, samples: Records, page_bytes: int
) -> tuple[_Joined, Floats, int]:
    """Divide the sampled pages and their accesses among the tensors on the pages.

    Returns (amounts in pages, for each amount the number of accesses to its pages, number of
    (stretch, page) pairs without a live tensor).
    """
    joined, accesses, unattributed = [_NOTHING], [np.zeros(0)], 0
    for part in sample_parts(step, samples):
        pages, seen, without = _join_part(found, step, part, page_bytes)
        joined.append(pages)
        accesses.append(seen)
        unattributed += without
    whole = _Joined(
        key=np.concatenate([part.key for part in joined]),
        column=np.concatenate([part.column for part in joined]),
        amount=np.concatenate([part.amount for part in joined]),
    )
    return whole, np.concatenate(accesses), unattributed


def _join_part(
    found: StepLifetimes, step: Step, samples: Records, page_bytes: int
) -> tuple[_Joined, Floats, int]:
    """As _join_samples(). The amounts of each tensor and stretch are summed, because separate
    amounts for all pages of a step would take too much memory."""
    keys, written, accesses = sampled_pairs(step, samples)
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
    amount = shared / total[rows]
    unattributed = int(np.count_nonzero(np.bincount(rows, minlength=len(keys)) == 0))
    sums, row = np.unique(key * 2 + written[rows], return_inverse=True)
    pages, seen = (
        np.bincount(row, weights, minlength=len(sums)).astype(np.float64)
        for weights in (amount, amount * accesses[rows])
    )
    return _Joined(sums // 2, sums % 2, pages), seen, unattributed


def _join_ops(
    found: StepLifetimes, step: Step, op_accesses: Records, page_bytes: int
) -> tuple[_Joined, Integers]:
    """The bytes of each access that the framework reported, and the instance that was accessed. An
    access is assigned to the tensor that was live at its address and time."""
    begins = boundary_records(step)["time_ns"].astype(np.int64)
    time = op_accesses["time_ns"].astype(np.int64)
    ops = op_accesses[(time >= begins[0]) & (time < step.end_ns)]
    time = ops["time_ns"].astype(np.int64)
    stretch = np.searchsorted(begins, time, side="right") - 1
    address = ops["address"].astype(np.int64)
    rows, instance = holders(found, stretch, address, time, page_bytes)
    tensor = found.instances["tensor"].astype(np.int64)[instance]
    joined = _Joined(
        key=stretch[rows] * len(found.tensors) + tensor,
        column=ops["write"][rows].astype(np.int64),
        amount=ops["bytes"][rows].astype(np.float64),
    )
    return joined, instance


def holders(
    found: StepLifetimes, stretch: Integers, address: Integers, time: Integers, page_bytes: int
) -> tuple[Integers, Integers]:
    """Pairs (row, instance) of the tensor that was live at each address and time.

    stretch, address, time: one entry per row; times in ns.

    A row can be an operator's access. Its time can be earlier than the allocation of the operator's
    output, because the output is allocated after the operator begins. If no tensor was live at the
    row's time, the row gets one of the tensors that are at the address during the stretch: the one
    that was born last. Rows without a tensor are left out.
    """
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
