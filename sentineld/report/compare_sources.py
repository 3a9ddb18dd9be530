# SPDX-License-Identifier: Apache-2.0
"""Comparison of the two sources of accesses: page samples and the operators' tensors.

The framework reports the input and output tensors of operators. The kernel module reports the
accessed pages. The accesses of both sources are compared by (tensor, layer call) pairs. Here, a
layer call consists of all stretches from one boundary to the next boundary that is not a planned
cut: for example, those of one forward or backward run of a module, or of one optimizer step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from sentineld.base.errors import SentinelError
from sentineld.model.arrays import Integers
from sentineld.model.profile import Profile
from sentineld.model.records import ACCESS_AGAIN, ACCESS_UNKNOWN
from sentineld.profile.steps import boundary_records
from sentineld.profile.trace import Trace, profile_of

PAGES_MIN = 4
"""Tensors of fewer pages are ignored, because page samples are too coarse for them: a page that is
shared with another tensor can be a large part of such a tensor."""


class DifferenceCause(StrEnum):
    """Reason why the module did not see an access that the framework reports."""

    BOUNDARY = "seen in an adjacent layer: the operator runs across a boundary"
    UNKNOWN = "its pages were unarmed by other code, or could not be armed"
    SHAPE_ONLY = "none of its pages was accessed: the operator uses its shape or creates a view"
    IN_FLIGHT = "its pages were in flight and so not armed, or none was accessed"


@dataclass(frozen=True)
class Difference:
    """A (tensor, layer call) pair that the framework reports and the module did not see."""

    tensor: int  # row in the profile's tensors
    first_stretch: int  # first stretch of the layer call
    why: DifferenceCause


@dataclass(frozen=True)
class Agreement:
    """The result of a comparison."""

    pairs: int  # pairs that the framework reports for tensors of PAGES_MIN pages or more
    differences: tuple[Difference, ...]  # the pairs that the module did not see

    @property
    def seen_share(self) -> float:
        """Pairs seen by both sources / pairs reported by the framework, 0..1; 1 if there are no
        pairs."""
        return 1 - len(self.differences) / self.pairs if self.pairs else 1.0

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "pairs": self.pairs,
            "seen_share": self.seen_share,
            "differences": {
                why.name.lower(): sum(1 for found in self.differences if found.why is why)
                for why in DifferenceCause
            },
        }


def agreement(trace: Trace) -> Agreement:
    """Compare a trace's two sources. Raises SentinelError if one of them is missing."""
    for rows, what in ((trace.samples, "page samples"), (trace.op_accesses, "operators' accesses")):
        if not len(rows):
            raise SentinelError(
                "failed",
                f"the trace has no {what}",
                "record with the kernel module, and a torch whose profiler reports inputs",
            )
    framework = profile_of(replace(trace, samples=trace.samples[:0]))
    kernel = profile_of(replace(trace, op_accesses=trace.op_accesses[:0]))
    layer_of, count = _layer_calls(framework)
    large = framework.tensors["bytes"] >= PAGES_MIN * trace.page_bytes
    named = _pairs(framework, layer_of, count, large)
    seen = _pairs(kernel, layer_of, count, large)
    missing = named[~np.isin(named, seen)]
    first = np.searchsorted(layer_of, np.arange(count))
    unknown = _unknown_pages(trace, framework, layer_of)
    rest = DifferenceCause.IN_FLIGHT if trace.facts.get("managed") else DifferenceCause.SHAPE_ONLY
    start = framework.tensors["address"].astype(np.int64) // trace.page_bytes
    past = start + -(-framework.tensors["bytes"].astype(np.int64) // trace.page_bytes)
    pages_of = list(zip(start.tolist(), past.tolist(), strict=True))
    return Agreement(
        len(named),
        tuple(
            Difference(
                tensor,
                int(first[layer]),
                _why(pages_of[tensor], tensor * count + layer, count, seen, unknown) or rest,
            )
            for tensor, layer in zip(*_split(missing, count), strict=True)
        ),
    )


def _layer_calls(profile: Profile) -> tuple[Integers, int]:
    """The layer call of each stretch, and the number of calls; planned cuts do not split a call."""
    begins = ~profile.stretches["cut"]
    begins[:1] = True
    layer_of = np.cumsum(begins) - 1
    return layer_of, int(layer_of[-1]) + 1


def _pairs(
    profile: Profile, layer_of: Integers, count: int, large: npt.NDArray[np.bool_]
) -> Integers:
    """The (tensor, layer call) pairs of the accesses to the tensors marked in `large`, ascending.
    Each pair is one number: tensor * count + layer call."""
    rows = profile.accesses
    rows = rows[large[rows["tensor"]]]
    layers = layer_of[rows["stretch"]]
    pairs: Integers = np.unique(rows["tensor"].astype(np.int64) * count + layers)
    return pairs


def _split(pairs: Integers, count: int) -> tuple[list[int], list[int]]:
    tensor, layer = np.divmod(pairs, count)
    return tensor.tolist(), layer.tolist()


def _unknown_pages(
    trace: Trace, profile: Profile, layer_of: Integers
) -> dict[int, list[tuple[int, int]]]:
    """By layer call: page ranges (first, past) in which an access may have been missed."""
    epochs = boundary_records(trace.access_step)["address"].astype(np.int64)
    marked = trace.samples["flags"] & (ACCESS_UNKNOWN | ACCESS_AGAIN) == ACCESS_UNKNOWN
    runs: dict[int, list[tuple[int, int]]] = {}
    for row in trace.samples[marked]:
        stretch = int(np.searchsorted(epochs, int(row["epoch"]), side="right")) - 1
        if 0 <= stretch < profile.stretch_count:
            first = int(row["page"])
            runs.setdefault(int(layer_of[stretch]), []).append(
                (first, first + int(row["more_pages"]) + 1)
            )
    return runs


def _why(
    pages: tuple[int, int],
    pair: int,
    count: int,
    seen: Integers,
    unknown: dict[int, list[tuple[int, int]]],
) -> DifferenceCause | None:
    layer = pair % count
    runs = unknown.get(layer, ())
    if any(first < pages[1] and past > pages[0] for first, past in runs):
        return DifferenceCause.UNKNOWN
    # Pairs of the same tensor in adjacent layer calls have consecutive numbers.
    adjacent = [pair + step for step in (-1, 1) if 0 <= layer + step < count]
    if np.isin(adjacent, seen).any():
        return DifferenceCause.BOUNDARY
    return None
