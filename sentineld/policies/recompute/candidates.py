# SPDX-License-Identifier: Apache-2.0
"""Tensors that a step could drop and compute again, and the time that this takes.

The unit of recomputation is a segment: one or a few consecutive layers of the forward pass, each
from the boundary that begins it to the one that begins the next layer. Operators do not cross these
boundaries. (They can cross cuts, which are placed by counting allocations.) A profile does not say
which operator made a tensor. So whole layers are executed again, and a recomputation costs their
whole time.

A tensor can be recomputed if the profile shows that the segment that made it can be executed again
on the same inputs without changing any other tensor. The conditions are:

- the segment contains the tensor's birth and all writes to the tensor before its gap (the longest
  time without an access to the tensor);
- all tensors that the segment reads and that were born before the segment are alive when the gap
  ends, and nothing has written to them since the segment;
- the segment writes to no tensor that was born before the segment.

If one of these conditions fails because of a tensor that an earlier layer made, the segment is
extended back to that layer, but to at most SEGMENT_LAYERS layers. So a dead input, or an input that
was changed in place, is computed again, too.

A profile does not show everything that matters. It is assumed that operators are deterministic (a
dropout layer would need the state of the random number generator), that nothing depends on tensors
below 4 KiB being unchanged (batch normalization updates such tensors), and that the framework has
reported all writes. docs/explanation/recomputation.md explains what this means for a real training.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from sentineld.model.arrays import Integers, Mask
from sentineld.model.profile import Kind, Profile
from sentineld.model.protocol import Boundary, Placement
from sentineld.model.timing import CACHED_BYTES
from sentineld.plan.items import tensor_pages
from sentineld.plan.layers import layer_of_stretch

SEGMENT_LAYERS = 4
"""Maximum number of layers in a segment."""

CANDIDATES_MAX = 256
"""Maximum number of recomputations that are considered: those that free the most bytes x time for
each ns of recomputation."""


@dataclass(frozen=True)
class Recomputation:
    """A segment that is executed again, and the dropped tensors that it makes again."""

    first: int
    """First stretch of the segment."""
    last: int
    """Last stretch of the segment."""
    at: int
    """The segment is executed again at the beginning of this stretch."""
    dropped: tuple[tuple[int, int], ...]
    """(row of the tensor, stretch at whose end the tensor is dropped), sorted by row. The tensors
    are absent until the recomputation."""
    inputs: frozenset[int]
    """Tensors that the segment reads and does not make: rows of the profile's tensors."""
    time_ns: int
    """Time of the segment with all memory fast."""

    @property
    def tensors(self) -> frozenset[int]:
        """The rows of the dropped tensors."""
        return frozenset(row for row, _ in self.dropped)


def candidates(profile: Profile, limit: int = CANDIDATES_MAX) -> tuple[Recomputation, ...]:
    """The recomputations that the profile permits, in the order of their segments.

    Tensors with the same segment whose gaps end in the same stretch are recomputed together.
    """
    step = Step(profile)
    found: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
    for row in np.flatnonzero(step.droppable).tolist():
        gap = step.longest_gap(row)
        if gap is None:
            continue
        written = [stretch for stretch in step.writes[row] if stretch <= gap[0]]
        segment = step.segment(int(step.births[row]), max(written, default=0), gap[1])
        if segment is not None:
            found.setdefault((*segment, gap[1]), []).append((row, gap[0]))
    every = [
        Recomputation(
            first, last, at, tuple(dropped), step.inputs(first, last), step.time_ns(first, last)
        )
        for (first, last, at), dropped in sorted(found.items())
    ]
    worth = [step.freed(one) / max(one.time_ns, 1) for one in every]
    best = sorted(np.argsort(-np.array(worth), kind="stable")[:limit].tolist())
    return tuple(every[at] for at in best)


def permitted(
    step: Step, first: int, last: int, born_from: int | None = None
) -> Recomputation | None:
    """The recomputation that executes the segment of the stretches `first` to `last` again. It
    drops tensors that are born in the segment and are not written to between the segment and their
    gaps (see the module's docstring). It is made in the stretch in which the first of these gaps
    ends. The segment may have any number of layers.

    born_from: only tensors that are born in this stretch or later are dropped; None: all tensors.
    Tensors that cannot be dropped are left out. Returns None if no recomputation is permitted.
    """
    inside = (step.births >= (first if born_from is None else born_from)) & (step.births <= last)
    gaps = {
        row: gap
        for row in np.flatnonzero(step.droppable & inside).tolist()
        if (gap := step.longest_gap(row)) is not None
        and all(stretch <= last for stretch in step.writes[row] if stretch <= gap[0])
    }
    at = min((gap[1] for gap in gaps.values()), default=0)
    dropped = tuple((row, gap[0]) for row, gap in gaps.items() if at > gap[0] + 1)
    if not dropped or not step.permits(first, last, at):
        return None
    return Recomputation(
        first, last, at, dropped, step.inputs(first, last), step.time_ns(first, last)
    )


def compatible(chosen: Sequence[Recomputation], other: Recomputation) -> bool:
    """Whether `other` can be made in addition to the chosen recomputations: no tensor is dropped
    twice, and no input of a recomputation is absent when it is read. An input that is itself
    recomputed at the beginning of the same stretch counts as absent."""
    return all(
        not (one.tensors & other.tensors) and not _lacks(one, other) and not _lacks(other, one)
        for one in chosen
    )


def _lacks(one: Recomputation, other: Recomputation) -> bool:
    """Whether `one` reads a tensor that `other` has dropped and not yet computed again."""
    return any(row in one.inputs and end < one.at <= other.at for row, end in other.dropped)


class Step:
    """The data of a step with which the conditions in the module's docstring are checked."""

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        tensors, rows = profile.tensors, profile.accesses
        self.uses: list[list[int]] = [[] for _ in tensors]
        self.writes: list[list[int]] = [[] for _ in tensors]
        for stretch, tensor, written in zip(
            rows["stretch"].tolist(),
            rows["tensor"].tolist(),
            (rows["bytes_written"] > 0).tolist(),
            strict=True,
        ):
            self.uses[tensor].append(stretch)
            if written:
                self.writes[tensor].append(stretch)
        self._in_stretch = np.searchsorted(rows["stretch"], np.arange(profile.stretch_count + 1))
        self.births: Integers = tensors["birth_stretch"].astype(np.int64)
        self._born = _made_in_step(profile)
        self.droppable: Mask = (
            self._born
            & (tensors["bytes"] >= CACHED_BYTES)
            & (tensors["kind"] == Kind.ACTIVATION)
            & (tensors["placed"] == Placement.AUTO)
        )
        self._layer = layer_of_stretch(profile)
        self._begins = np.flatnonzero(np.diff(self._layer, prepend=self._layer[:1] - 1))
        self._forward = _forward(profile)
        self._times = np.concatenate([[0], np.cumsum(profile.stretches["time_ns"])]).astype(
            np.int64
        )

    def time_ns(self, first: int, last: int) -> int:
        """The time of the stretches first to last."""
        return int(self._times[last + 1] - self._times[first])

    def longest_gap(self, row: int) -> tuple[int, int] | None:
        """Of the pairs of consecutive uses of a tensor that have at least one stretch between them,
        the pair with the longest time between them; None if there is no such pair."""
        uses = self.uses[row]
        gaps = [(since, until) for since, until in pairwise(uses) if until > since + 1]
        return max(gaps, key=lambda gap: self.time_ns(gap[0] + 1, gap[1] - 1), default=None)

    def freed(self, one: Recomputation) -> float:
        """Bytes that a recomputation frees, times the time for which it frees them."""
        return sum(
            float(self._profile.tensors["bytes"][row]) * self.time_ns(end + 1, one.at - 1)
            for row, end in one.dropped
        )

    def inputs(self, first: int, last: int) -> frozenset[int]:
        """The tensors that the segment accesses and does not make."""
        rows = np.unique(self._accessed(first, last)["tensor"]).tolist()
        return frozenset(row for row in rows if not self._makes(row, first, last))

    def segment(self, first: int, last: int, at: int) -> tuple[int, int] | None:
        """The shortest segment that contains the stretches `first` to `last` and can be executed
        again at the beginning of the stretch `at`; None if there is no such segment."""
        last = self._end_of(max(first, last))
        first = self._begin_of(first)
        while last < at and int(self._layer[last] - self._layer[first]) < SEGMENT_LAYERS:
            if not self._is_repeatable(first, last):
                return None
            missing = self._missing(first, last, at)
            if not missing:
                return first, last
            if not all(self._born[row] for row in missing):
                return None
            earlier = min(int(self.births[row]) for row in missing)
            if earlier >= first:
                return None
            first = self._begin_of(earlier)
        return None

    def permits(self, first: int, last: int, at: int) -> bool:
        """Whether the segment can be executed again at the beginning of the stretch `at`."""
        return last < at and self._is_repeatable(first, last) and not self._missing(first, last, at)

    def _begin_of(self, stretch: int) -> int:
        return int(self._begins[np.searchsorted(self._begins, stretch, side="right") - 1])

    def _end_of(self, stretch: int) -> int:
        after = int(np.searchsorted(self._begins, stretch, side="right"))
        return int(self._begins[after]) - 1 if after < len(self._begins) else len(self._layer) - 1

    def _accessed(self, first: int, last: int) -> np.ndarray[tuple[int], np.dtype[np.void]]:
        return self._profile.accesses[self._in_stretch[first] : self._in_stretch[last + 1]]

    def _makes(self, row: int, first: int, last: int) -> bool:
        return bool(self._born[row]) and first <= int(self.births[row]) <= last

    def _is_repeatable(self, first: int, last: int) -> bool:
        """Whether the segment is part of the forward pass, and all tensors that it makes are freed
        in the same step."""
        inside = (self.births >= first) & (self.births <= last)
        remains = (self._profile.tensors["slot"] >= 0) & inside & ~self._born
        return bool(self._forward[first : last + 1].all() and not remains.any())

    def _missing(self, first: int, last: int, at: int) -> set[int]:
        """The inputs that prevent the segment from being executed again at the stretch `at`: the
        segment writes to them, or they are dead or changed by then."""
        tensors = self._profile.tensors
        found: set[int] = set()
        for row in self.inputs(first, last):
            alive = tensors["kind"][row] == Kind.PERSISTENT or (
                self._born[row] and int(tensors["death_stretch"][row]) >= at
            )
            if not alive or any(first <= stretch < at for stretch in self.writes[row]):
                found.add(row)
        return found


def _made_in_step(profile: Profile) -> Mask:
    """(T,): the transient tensors that are born and freed in the same step."""
    tensors = profile.tensors
    found: Mask = (tensors["slot"] >= 0) & (tensors["kind"] != Kind.PERSISTENT) & ~tensors["wraps"]
    return found


def _forward(profile: Profile) -> Mask:
    """(S,): the stretches of the forward pass. Code outside of layers counts as forward up to the
    first layer of the backward pass; the stretches before the first layer do not count as
    forward."""
    kinds = profile.stretches["kind"]
    marks = np.isin(kinds, [Boundary.STEP, Boundary.FORWARD, Boundary.BACKWARD, Boundary.OPTIMIZER])
    last: Integers = np.maximum.accumulate(np.where(marks, np.arange(len(kinds)), 0))
    found: Mask = kinds[last] == Boundary.FORWARD
    return found


def dropped_pages(profile: Profile, chosen: Iterable[Recomputation]) -> int:
    """Number of pages that the recomputations drop in a step."""
    pages = tensor_pages(profile)
    return sum(int(pages[row]) for one in chosen for row in one.tensors)
