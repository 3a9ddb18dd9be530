# SPDX-License-Identifier: Apache-2.0
"""Steps whose allocations differ in size only, as with batches of varying length.

One plan can serve all such steps: it gives each allocation a place that is as large as the largest
size seen. The shim does not see allocations below protocol.TENSOR_BYTES_MIN. Therefore a step can
also lack an allocation that larger steps have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from sentineld.model.arrays import Mask
from sentineld.model.profile import Kind, Profile
from sentineld.model.protocol import TENSOR_BYTES_MIN, Event
from sentineld.profile.lifetimes import peak_bytes
from sentineld.profile.step_check import I64_MAX
from sentineld.profile.steps import (
    Step,
    births,
    kept_records,
    sequence_digest,
    structure,
    structure_digest,
)

STRUCTURES_MAX = 8
"""Maximum number of structures (steps.structure_digest()) for which a step is kept."""
RECORDS_MAX = 1 << 19
"""Limit on the total number of records and live tensors in the kept steps, which are the largest
step of each structure. One step is kept even if it exceeds this limit."""
OPTIONAL_BYTES_MAX = 16 * TENSOR_BYTES_MIN
"""Steps may lack an allocation of varying size if its largest size is below this limit. For
example, if the size of such an allocation is proportional to the length of the batch, the
allocation is missing in each step whose batch is at most a sixteenth as long as the longest
batch."""
STEADY_SHARE = 0.75
"""Steps count as steady if at least this share of them has the same sequence (steady())."""
LAST_STEPS = 4


@dataclass(frozen=True)
class Sizes:
    """The sizes of the allocations of one or more steps, as arrays indexed by allocation cursor."""

    largest_bytes: npt.NDArray[np.uint64]
    vary: Mask  # whether the sizes differ
    optional: Mask  # whether steps may lack the allocation

    @classmethod
    def of(cls, step: Step) -> Sizes:
        """The sizes of a single step."""
        sizes = births(step)
        return cls(sizes, *np.zeros((2, len(sizes)), np.bool_))

    @property
    def total_bytes(self) -> float:
        """Sum of the largest sizes."""
        return float(self.largest_bytes.sum(dtype=np.float64))

    @property
    def possible(self) -> bool:
        """Whether sums of the sizes fit in 64 bits. This must be checked here, because the sizes
        come from the training process, and step_check.py checks only the sums of single steps."""
        return self.total_bytes < I64_MAX / 2

    def joined(self, other: Sizes) -> Sizes:
        """The sizes of two sets of steps together. Both sets must have the same number of
        allocations."""
        vary = self.vary | other.vary | (self.largest_bytes != other.largest_bytes)
        largest_bytes = np.maximum(self.largest_bytes, other.largest_bytes)
        return Sizes(largest_bytes, vary, self.optional | other.optional)

    def joined_lacking(self, lacking: Mask, other: Sizes) -> Sizes:
        """The sizes of two sets of steps together, where the steps of the second set lack some of
        the allocations. lacking: which allocations they lack. other: the sizes of the second
        set."""
        largest_bytes = self.largest_bytes.copy()
        largest_bytes[~lacking] = other.largest_bytes
        vary, optional = np.copy(lacking), np.copy(lacking)
        vary[~lacking] |= other.vary
        optional[~lacking] |= other.optional
        return self.joined(Sizes(largest_bytes, vary, optional))

    def with_small_optional(self) -> Sizes:
        """The same sizes, with small allocations of varying size marked as optional, even if all
        steps seen so far have them."""
        return replace(self, optional=self.optional | (self.vary & self._small))

    @property
    def _small(self) -> Mask:
        small: Mask = self.largest_bytes < OPTIONAL_BYTES_MAX
        return small

    def missing_candidates(self, steps: int) -> Mask:
        """Which allocations other steps may lack. steps: number of steps from which these sizes
        come. A single step does not show which sizes vary, so other steps may lack any of its
        small allocations."""
        return self._small & self.vary if steps > 1 else self._small

    def slots(self, sizes: Sequence[int]) -> list[int] | None:
        """The slots of a step's allocations in a layout for these sizes, as skip_optional() in
        shim/native/boundary.c finds them; None if the step diverges."""
        found: list[int] = []
        at, count = 0, len(self.largest_bytes)
        largest, vary = self.largest_bytes.tolist(), self.vary.tolist()
        optional = self.optional.tolist()
        for size in sizes:
            while at < count and not (size == largest[at] or (vary[at] and size < largest[at])):
                if not optional[at]:
                    return None
                at += 1
            if at == count:
                return None
            found.append(at)
            at += 1
        return found if all(optional[at:]) else None

    def accept(self, sizes: Sequence[int]) -> bool:
        """Whether the allocations of a step fit a layout for these sizes."""
        return self.slots(sizes) is not None


@dataclass(frozen=True)
class Similar:
    """Recorded steps that differ at most in two ways: the sizes of allocations differ, and some
    steps lack small allocations."""

    steps: int
    sizes: Sizes
    largest: Step  # the step that allocated the most bytes

    def with_step(self, step: Step) -> Similar:
        """These steps and one more, which has the same structure."""
        sizes = Sizes.of(step)
        larger = sizes.total_bytes > Sizes.of(self.largest).total_bytes
        return Similar(self.steps + 1, self.sizes.joined(sizes), step if larger else self.largest)

    def joined(self, other: Similar) -> Similar:
        """Both groups of steps as one group, if they differ only in sizes and in small allocations
        that the steps of `other` lack; else self."""
        lacking = lacking_in(other.largest, self)
        if lacking is None:
            return self
        sizes = self.sizes.joined_lacking(lacking, other.sizes)
        if sizes.slots(births(other.largest).tolist()) != np.flatnonzero(~lacking).tolist():
            return self
        return Similar(self.steps + other.steps, sizes, self.largest)


class SeenSteps:
    """Consecutively recorded steps, grouped by their structures. Two steps are identical if their
    sequences (sequence_digest()) are equal."""

    def __init__(self) -> None:
        self.sizes: list[npt.NDArray[np.uint64]] = []
        """The sizes of each step's allocations."""
        self._similar: dict[str, Similar] = {}
        self._sequences: list[str] = []

    @property
    def count(self) -> int:
        """Number of steps."""
        return len(self.sizes)

    def add(self, step: Step) -> None:
        """Record a step. If there are too many structures, or if their largest steps have too many
        records, the structures seen least often are dropped."""
        self.sizes.append(births(step))
        self._sequences.append(sequence_digest(step))
        name = structure_digest(step)
        before = self._similar.get(name)
        self._similar[name] = before.with_step(step) if before else Similar(1, Sizes.of(step), step)
        while len(self._similar) > 1 and self._too_many():
            del self._similar[min(self._similar, key=lambda one: self._similar[one].steps)]

    def _too_many(self) -> bool:
        records = sum(kept_records(one.largest) for one in self._similar.values())
        return len(self._similar) > STRUCTURES_MAX or records > RECORDS_MAX

    def identical(self) -> bool:
        """Whether all steps have the same sequence."""
        return len(set(self._sequences)) == 1

    @property
    def changes(self) -> int:
        """Number of steps whose sequence differs from that of the step before."""
        return sum(one != other for one, other in pairwise(self._sequences))

    def steady(self, last: int | None = LAST_STEPS) -> bool:
        """Whether most of the last steps have the same sequence. last: number of these steps; None:
        all steps."""
        recent = self._sequences if last is None else self._sequences[-last:]
        return max(Counter(recent).values(), default=0) >= STEADY_SHARE * len(recent)

    def most_similar(self, share: float) -> Similar | None:
        """A group of similar steps (see Similar) that makes up at least `share` of all steps and in
        which sizes differ; None if there is no such group. If there are several, the result is the
        one whose steps have the most allocations."""
        wholes = sorted(
            (one for one in self._similar.values() if one.steps > 1),
            key=lambda one: len(one.sizes.vary),
            reverse=True,
        )
        for whole in wholes:
            found = whole
            for other in self._similar.values():
                if other is not whole:
                    found = found.joined(other)
            if found.steps >= share * self.count and found.sizes.vary.any():
                return found
        return None


def lacking_in(step: Step, whole: Similar) -> Mask | None:
    """(slots,): which allocations of `whole` the step lacks; None if the step also differs from
    `whole` in another way.

    If allocations are missing between two boundaries, they are assumed to be the smallest of the
    allocations there that steps may lack (Sizes.missing_candidates()). If whole.largest without
    these allocations does not have the step's structure, the result is None.
    """
    ours, theirs = structure(whole.largest), structure(step)
    marks = [one[3:, one[0] == Event.BOUNDARY] for one in (ours, theirs)]
    if not np.array_equal(marks[0], marks[1]):
        return None
    segments = [
        np.cumsum(one[0] == Event.BOUNDARY)[one[0] == Event.ALLOC] for one in (ours, theirs)
    ]
    count = marks[0].shape[1] + 1
    counts = [np.bincount(segment, minlength=count) for segment in segments]
    missing = counts[0] - counts[1]
    if np.any(missing < 0):
        return None
    segment, candidates = segments[0], whole.sizes.missing_candidates(whole.steps)
    order = np.lexsort((whole.sizes.largest_bytes, ~candidates, segment))
    rank = np.arange(len(order)) - (np.cumsum(counts[0]) - counts[0])[segment[order]]
    lacking = np.zeros(len(order), np.bool_)
    lacking[order] = rank < missing[segment[order]]
    if np.any(lacking & ~candidates):
        return None
    rows = [0, 2, 3, 4]  # all but the sizes
    return lacking if np.array_equal(_left(ours, lacking)[rows], theirs[rows]) else None


def _left(sequence: npt.NDArray[np.uint64], lacking: Mask) -> npt.NDArray[np.uint64]:
    """The sequence, as structure() returns it, without the allocations marked in `lacking` and
    without their frees."""
    before = np.concatenate([[0], np.cumsum(lacking)])
    is_boundary = sequence[0] == Event.BOUNDARY
    cursor = sequence[2].astype(np.int64)
    known = cursor < len(lacking)
    gone = ~is_boundary & known & lacking[np.where(known, cursor, 0)]
    left = sequence[:, ~gone].copy()
    left[2] = (cursor - before[np.minimum(cursor, len(lacking))])[~gone]
    return left


def with_sizes(profile: Profile, sizes: Sizes) -> Profile:
    """The profile of a step whose allocations have the largest sizes.

    The accesses of each tensor grow in proportion to its size. The times are not scaled, so
    they should come from a step of about these sizes. Optional allocations get no place in the
    arena: their tensors count as persistent, like other tensors that can't be planned
    (lifetimes.unplanned()). If a step lacks one of them, another allocation may take its slot, and
    a place that was planned for this slot would not suit that allocation.
    """
    page = profile.page_bytes
    tensors, accesses = profile.tensors.copy(), profile.accesses.copy()
    slotted = np.flatnonzero(tensors["slot"] >= 0)
    before = tensors["bytes"].astype(np.float64)
    slots = tensors["slot"][slotted]
    tensors["bytes"][slotted] = sizes.largest_bytes[slots]
    grown = (tensors["bytes"] / np.maximum(before, 1.0))[accesses["tensor"]]
    for name in ("bytes_read", "bytes_written"):
        accesses[name] = np.minimum(np.rint(accesses[name] * grown), I64_MAX / 2)
    pages = -(-tensors["bytes"].astype(np.int64) // page)[accesses["tensor"]]
    per_page = accesses["page_accesses"] / np.maximum(accesses["pages"], 1)
    accesses["pages"] = np.minimum(np.ceil(accesses["pages"] * grown), pages)
    accesses["page_accesses"] = np.rint(accesses["pages"] * per_page)
    optional = slotted[sizes.optional[slots]]
    tensors["kind"][optional], tensors["wraps"][optional] = Kind.PERSISTENT, False
    tensors["death_event"][optional] = profile.event_count
    tensors["death_stretch"][optional] = profile.stretch_count - 1
    return replace(
        profile,
        tensors=tensors,
        accesses=accesses,
        peak_bytes=peak_bytes(tensors, profile.event_count, page),
    )
