# SPDX-License-Identifier: Apache-2.0
"""The pool of short-lived tensors, and the tensors outside the pool, which are scheduled."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sentineld.base.errors import SentinelError
from sentineld.base.units import format_bytes
from sentineld.model.arrays import Integers
from sentineld.model.profile import Kind, Profile
from sentineld.plan.items import tensor_pages
from sentineld.plan.layers import short_lived
from sentineld.plan.layout import area_offsets
from sentineld.plan.packing import circular_peak


@dataclass(frozen=True)
class Split:
    """Division of the tensors between the pool and the schedule."""

    pooled: Integers
    """Short-lived tensors of the pool: rows of the profile. A tensor is short-lived if it dies in
    the layer of its birth."""

    candidates: Integers
    """Tensors that are scheduled: persistent ones that were in the heap before the step, long-lived
    ones, and short-lived ones that are too large for the pool."""

    pool_pages: int


def split_of(profile: Profile, pooled: Integers, pool_pages: int) -> Split:
    """The division in which these tensors form a pool of this size."""
    tensors = profile.tensors
    outlasting = (tensors["slot"] >= 0) & (tensors["kind"] == Kind.PERSISTENT)
    elsewhere = (tensors["slot"] < 0) & (tensors["address"] < profile.heap_base)
    rest = ~outlasting & ~elsewhere
    rest[pooled] = False
    return Split(pooled, np.flatnonzero(rest), pool_pages)


def whole_pool(profile: Profile, limit: int) -> Split:
    """The division in which the pool holds all short-lived tensors, as published.

    limit: fast memory, in pages. Raises SentinelError if the pool exceeds this limit.
    """
    short = np.flatnonzero(short_lived(profile))
    _, size = area_offsets(profile, short, grouped=False)
    if size > limit:
        page = profile.page_bytes
        raise SentinelError(
            "failed",
            f"infeasible as published: short-lived tensors alone need {format_bytes(size * page)} "
            f"of fast memory, and {format_bytes(limit * page)} are available",
            "give the process more fast memory, or use the policy sentinel+spill",
        )
    return split_of(profile, short, size)


def largest_pool(profile: Profile, limit: int) -> Split:
    """The division in which the pool holds all short-lived tensors up to a maximum size. This size
    is the largest one at which the pool stays within `limit` pages."""
    short = np.flatnonzero(short_lived(profile))
    pages = tensor_pages(profile)[short]
    for largest in np.unique(pages)[::-1].tolist():
        pooled = short[pages <= largest]
        rows = profile.tensors[pooled]
        least = circular_peak(
            tensor_pages(profile)[pooled],
            rows["birth_event"].astype(np.int64),
            rows["death_event"].astype(np.int64),
            profile.event_count,
        )
        if least > limit:
            continue
        _, size = area_offsets(profile, pooled, grouped=False)
        if size <= limit:
            return split_of(profile, pooled, size)
    return split_of(profile, short[:0], 0)
