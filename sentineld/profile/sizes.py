# SPDX-License-Identifier: Apache-2.0
"""Steps whose allocations differ in size only, as with batches of varying length.

One plan can serve all such steps: it gives each allocation a place that is as large as the largest
size seen. The shim does not see allocations below protocol.TENSOR_BYTES_MIN, so steps can also lack
allocations that are below this size in them and above it in larger steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from sentineld.model.arrays import Mask
from sentineld.model.profile import Profile
from sentineld.model.protocol import TENSOR_BYTES_MIN, Event
from sentineld.profile.lifetimes import peak_bytes
from sentineld.profile.step_check import I64_MAX
from sentineld.profile.steps import Step, births, sequence_digest, structure, structure_digest

STRUCTURES_MAX = 8
"""Number of structures (steps.structure_digest()) of which steps are kept."""
OPTIONAL_BYTES_MAX = 16 * TENSOR_BYTES_MIN
"""An allocation that varies and is below this size may be missing in other steps. A step of a
sixteenth of the length lacks it."""


@dataclass(frozen=True)
class Sizes:
    """The sizes of the allocations of steps, each (slots,), by allocation cursor."""

    most: npt.NDArray[np.uint64]  # largest size seen, in bytes
    vary: Mask  # whether the sizes differ
    optional: Mask  # whether steps may lack the allocation

    @classmethod
    def of(cls, step: Step) -> Sizes:
        """The sizes of a single step."""
        most = births(step)
        return cls(most, *np.zeros((2, len(most)), np.bool_))

    def joined(self, other: Sizes) -> Sizes:
        """The sizes of both, which must have the same number of allocations."""
        vary = self.vary | other.vary | (self.most != other.most)
        optional = self.optional | other.optional
        return Sizes(np.maximum(self.most, other.most), vary, optional)

    def without(self, lacking: Mask, other: Sizes) -> Sizes:
        """The sizes of both, if the other steps lack some allocations."""
        most = self.most.copy()
        most[~lacking] = other.most
        vary, optional = np.copy(lacking), np.copy(lacking)
        vary[~lacking] |= other.vary
        optional[~lacking] |= other.optional
        return self.joined(Sizes(most, vary, optional))

    def with_small_optional(self) -> Sizes:
        """The same sizes, but allocations that vary and are small may be missing, even if all steps
        seen so far have them."""
        small = self.vary & (self.most < OPTIONAL_BYTES_MAX)
        return replace(self, optional=self.optional | small)

    def cover(self, other: Sizes) -> bool:
        """Whether all steps of the other sizes fit the places of a plan for these sizes."""
        if len(self.most) != len(other.most):
            return False
        differ = other.vary | (other.most != self.most)
        beyond = (other.most > self.most) | (differ & ~self.vary)
        return not bool(np.any(beyond | (other.optional & ~self.optional)))

    def take(self, sizes: Sequence[int]) -> bool:
        """Whether a step with these allocations follows a plan for these sizes, as replay() in
        shim/native/interpose.c decides."""
        at, count = 0, len(self.most)
        most, vary, optional = self.most.tolist(), self.vary.tolist(), self.optional.tolist()
        for size in sizes:
            while at < count and not (size == most[at] or (vary[at] and size < most[at])):
                if not optional[at]:
                    return False
                at += 1
            if at == count:
                return False
            at += 1
        return all(optional[at:])


@dataclass(frozen=True)
class Similar:
    """Recorded steps that differ in the sizes of allocations only."""

    steps: int
    sizes: Sizes
    largest: Step  # the step that allocated most

    def joined(self, other: Similar) -> Similar | None:
        """All steps of both, if the other steps only lack some small allocations."""
        lacking = lacking_in(other.largest, self)
        if lacking is None:
            return None
        sizes = self.sizes.without(lacking, other.sizes)
        return Similar(self.steps + other.steps, sizes, self.largest)


class SeenSteps:
    """The steps that were recorded one after the other, by structure and by sequence."""

    def __init__(self) -> None:
        self.count = 0
        """Number of steps."""
        self._similar: dict[str, Similar] = {}
        self._sequences: Counter[str] = Counter()

    def add(self, step: Step) -> None:
        """Record a step. If there are too many structures, the one seen least is dropped."""
        self.count += 1
        self._sequences[sequence_digest(step)] += 1
        name, found = structure_digest(step), Similar(1, Sizes.of(step), step)
        before = self._similar.get(name)
        if before is not None:
            larger = _total_bytes(found.sizes) > _total_bytes(Sizes.of(before.largest))
            found = Similar(
                before.steps + 1,
                before.sizes.joined(found.sizes),
                step if larger else before.largest,
            )
        self._similar[name] = found
        if len(self._similar) > STRUCTURES_MAX:
            del self._similar[min(self._similar, key=lambda one: self._similar[one].steps)]

    def share_of_sequence(self) -> float:
        """Share of the steps that have the most frequent sequence, 0..1."""
        return max(self._sequences.values(), default=0) / max(self.count, 1)

    def most_similar(self, share: float) -> Similar | None:
        """The largest set of steps that differ in the sizes of allocations only.

        None if they are less than this share of all steps, if they do not differ, or if their
        largest sizes are impossible.
        """
        best: Similar | None = None
        for whole in self._similar.values():
            found = whole
            for other in self._similar.values():
                if other is not whole:
                    found = found.joined(other) or found
            if best is None or found.steps > best.steps:
                best = found
        if best is None or best.steps < share * self.count or not best.sizes.vary.any():
            return None
        # The sizes come from the training process; step_check.py has checked single steps only.
        if _total_bytes(best.sizes) >= I64_MAX / 2:
            return None
        return replace(best, sizes=best.sizes.with_small_optional())


def lacking_in(step: Step, whole: Similar) -> Mask | None:
    """Which allocations of `whole` the step lacks, (slots,); None if they differ in other ways.

    The step lacks the smallest allocations between two boundaries. If whole.sizes.vary is known,
    only allocations that vary can be missing. The step and the rest of whole.largest must have the
    same structure.
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
    sizes, segment = whole.sizes, segments[0]
    candidates = sizes.vary if whole.steps > 1 else np.ones(len(segment), np.bool_)
    order = np.lexsort((sizes.most, ~candidates, segment))
    rank = np.arange(len(order)) - (np.cumsum(counts[0]) - counts[0])[segment[order]]
    lacking = np.zeros(len(order), np.bool_)
    lacking[order] = rank < missing[segment[order]]
    if np.any(lacking & ~candidates) or not np.array_equal(_without(ours, lacking)[2:], theirs[2:]):
        return None
    return lacking


def _without(sequence: npt.NDArray[np.uint64], lacking: Mask) -> npt.NDArray[np.uint64]:
    """The structure() without some allocations and their frees."""
    before = np.concatenate([[0], np.cumsum(lacking)])
    is_boundary = sequence[0] == Event.BOUNDARY
    cursor = sequence[2].astype(np.int64)
    known = cursor < len(lacking)
    gone = ~is_boundary & known & lacking[np.where(known, cursor, 0)]
    left = sequence[:, ~gone].copy()
    left[2] = (cursor - before[np.minimum(cursor, len(lacking))])[~gone]
    return left


def _total_bytes(sizes: Sizes) -> float:
    return float(sizes.most.sum(dtype=np.float64))


def with_sizes(profile: Profile, sizes: Sizes) -> Profile:
    """The profile of a step whose allocations have the largest sizes.

    The accesses of each tensor grow in proportion to its size. The times do not change: they should
    come from a step of about these sizes.
    """
    page = profile.page_bytes
    tensors, accesses = profile.tensors.copy(), profile.accesses.copy()
    slotted = np.flatnonzero(tensors["slot"] >= 0)
    before = tensors["bytes"].astype(np.float64)
    tensors["bytes"][slotted] = sizes.most[tensors["slot"][slotted]]
    grown = (tensors["bytes"] / np.maximum(before, 1.0))[accesses["tensor"]]
    for name in ("bytes_read", "bytes_written"):
        accesses[name] = np.rint(accesses[name] * grown)
    pages = -(-tensors["bytes"].astype(np.int64) // page)[accesses["tensor"]]
    accesses["pages"] = np.minimum(np.ceil(accesses["pages"] * grown), pages)
    return replace(
        profile,
        tensors=tensors,
        accesses=accesses,
        peak_bytes=peak_bytes(tensors, profile.event_count, page),
    )
