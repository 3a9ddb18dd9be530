# SPDX-License-Identifier: Apache-2.0
"""Do the kernel and the framework see the same? Page samples against operators' tensors.

The framework says which tensors an operator takes and gives, the module which
pages were accessed. They are compared by tensor and layer: a layer is a run of
stretches of one module's forward or backward, or a part of the optimizer.
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
"""Smaller tensors share their pages with others, or lie in caches from operator to operator."""


class Why(StrEnum):
    """Why the module did not see a tensor that the framework names."""

    BOUNDARY = "seen in the layer beside it: the operator works on both sides of a boundary"
    UNKNOWN = "pages were un-armed by somebody else, or could not be armed"
    SHAPE_ONLY = "no page of it was touched: the operator takes its shape or makes a view of it"
    IN_FLIGHT = "its pages were on their way between tiers and not armed, or none was touched"


@dataclass(frozen=True)
class Difference:
    """One (tensor, layer) pair that the framework names and the module did not see."""

    tensor: int
    first_stretch: int
    why: Why


@dataclass(frozen=True)
class Agreement:
    """pairs: (tensor, layer) pairs of tensors of PAGES_MIN pages or more that the framework names;
    differences: those of them that the module did not see."""

    pairs: int
    differences: tuple[Difference, ...]

    @property
    def seen_share(self) -> float:
        """Pairs that both saw / pairs that the framework names; 1 without any."""
        return 1 - len(self.differences) / self.pairs if self.pairs else 1.0

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "pairs": self.pairs,
            "seen_share": self.seen_share,
            "differences": {
                why.name.lower(): sum(1 for found in self.differences if found.why is why)
                for why in Why
            },
        }


def agreement(trace: Trace) -> Agreement:
    """Compare a trace's two sources. Raises SentinelError if it has only one of them."""
    for rows, what in ((trace.samples, "page samples"), (trace.op_accesses, "operators' accesses")):
        if not len(rows):
            raise SentinelError(
                "failed",
                f"the trace has no {what}",
                "record with the kernel module, on a torch whose profiler tells operators' inputs",
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
    rest = Why.IN_FLIGHT if trace.facts.get("managed") else Why.SHAPE_ONLY
    start = framework.tensors["address"].astype(np.int64) // trace.page_bytes
    past = start + -(-framework.tensors["bytes"].astype(np.int64) // trace.page_bytes)
    pages_of = list(zip(start.tolist(), past.tolist(), strict=True))
    return Agreement(
        len(named),
        tuple(
            Difference(
                tensor,
                int(first[layer]),
                _why(pages_of[tensor], tensor * count + layer, layer, seen, unknown) or rest,
            )
            for tensor, layer in zip(*_split(missing, count), strict=True)
        ),
    )


def _layer_calls(profile: Profile) -> tuple[Integers, int]:
    """The layer call of each stretch, and how many there are; planned cuts divide none."""
    begins = ~profile.stretches["cut"]
    begins[:1] = True
    layer_of = np.cumsum(begins) - 1
    return layer_of, int(layer_of[-1]) + 1


def _pairs(
    profile: Profile, layer_of: Integers, count: int, large: npt.NDArray[np.bool_]
) -> Integers:
    """tensor * count + layer, rising, of accesses to large tensors."""
    rows = profile.accesses[large[profile.accesses["tensor"]]]
    pairs: Integers = np.unique(rows["tensor"].astype(np.int64) * count + layer_of[rows["stretch"]])
    return pairs


def _split(pairs: Integers, count: int) -> tuple[list[int], list[int]]:
    tensor, layer = np.divmod(pairs, count)
    return tensor.tolist(), layer.tolist()


def _unknown_pages(
    trace: Trace, profile: Profile, layer_of: Integers
) -> dict[int, list[tuple[int, int]]]:
    """By layer call the runs of pages (first, past) in which an access may have been missed."""
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
    layer: int,
    seen: Integers,
    unknown: dict[int, list[tuple[int, int]]],
) -> Why | None:
    runs = unknown.get(layer, ())
    if any(first < pages[1] and past > pages[0] for first, past in runs):
        return Why.UNKNOWN
    # pairs of one tensor are numbered by layer
    if np.isin((pair - 1, pair + 1), seen).any():
        return Why.BOUNDARY
    return None
