# SPDX-License-Identifier: Apache-2.0
"""Accesses that can't be attributed to a live tensor: their mapping and a reason."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sentineld.model.arrays import Integers
from sentineld.model.profile import page_spans
from sentineld.model.protocol import Alloc, Event
from sentineld.model.records import MemoryMapping, Records
from sentineld.profile.attribution import find_tenants
from sentineld.profile.lifetimes import step_lifetimes
from sentineld.profile.sampled_pairs import PAGE_MASK, sampled_pairs
from sentineld.profile.trace import Trace

OTHER_THREAD = "a tensor of another thread"
NOT_ALIVE = "memory of a tensor that is not live"
NO_TENSOR = "memory of no tensor in this step"


@dataclass(frozen=True)
class UnattributedAccesses:
    """Unattributed accesses in one mapping, for one reason."""

    mapping: str
    what: str  # the reason
    pairs: int  # number of (page, stretch) pairs
    pages: int  # distinct pages

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)


def unattributed_accesses(trace: Trace) -> tuple[UnattributedAccesses, ...]:
    """The unattributed accesses of a trace; the entries with the most pairs come first. Raises
    SentinelError."""
    if not len(trace.samples):
        return ()
    step, page_bytes = trace.access_step, trace.page_bytes
    found = step_lifetimes(step, trace.cuts)
    keys = sampled_pairs(step, trace.samples).keys
    rows, _ = find_tenants(found, keys, page_bytes)
    unattributed = np.ones(len(keys), np.bool_)
    unattributed[rows] = False
    pages = keys[unattributed] & PAGE_MASK
    names = [*sorted({mapped.name for mapped in trace.mappings}), "unknown"]
    mapping = _mapping_of(pages * page_bytes, trace.mappings, names)
    records = step.records
    other = (records["event"] == Event.ALLOC) & (records["detail"] == Alloc.OTHER)
    what = np.where(_on(pages, found.instances, page_bytes), 1, 2)
    what[_on(pages, records[other], page_bytes)] = 0
    reasons = (OTHER_THREAD, NOT_ALIVE, NO_TENSOR)
    groups, group = np.unique(mapping * len(reasons) + what, return_inverse=True)
    counted = [
        UnattributedAccesses(
            mapping=names[key // len(reasons)],
            what=reasons[key % len(reasons)],
            pairs=int(np.count_nonzero(group == index)),
            pages=len(np.unique(pages[group == index])),
        )
        for index, key in enumerate(groups.tolist())
    ]
    return tuple(sorted(counted, key=lambda one: -one.pairs))


def _mapping_of(
    addresses: Integers, mappings: tuple[MemoryMapping, ...], names: list[str]
) -> Integers:
    """Index in `names` of each address's mapping; the last index if no mapping contains it."""
    known = sorted(mappings)
    unknown = len(names) - 1
    if not known:
        return np.full(len(addresses), unknown)
    starts = np.array([mapped.start for mapped in known], np.uint64).astype(np.int64)
    ends = np.array([mapped.end for mapped in known], np.uint64).astype(np.int64)
    index = np.array([names.index(mapped.name) for mapped in known])
    at = np.searchsorted(starts, addresses, side="right") - 1
    inside = (at >= 0) & (addresses < ends[at])
    return np.where(inside, index[at], unknown)


def _on(pages: Integers, tensors: Records, page_bytes: int) -> npt.NDArray[np.bool_]:
    """Which pages overlap any of the tensors."""
    first, past = page_spans(tensors, page_bytes)
    begun = np.searchsorted(np.sort(first), pages, side="right")
    ended = np.searchsorted(np.sort(past), pages, side="right")
    on: npt.NDArray[np.bool_] = begun > ended
    return on
