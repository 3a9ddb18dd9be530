# SPDX-License-Identifier: Apache-2.0
"""The samples of a step as (stretch, page) pairs, each represented by one number, its key."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sentineld.base.errors import SentinelError
from sentineld.model.arrays import Integers, Mask
from sentineld.model.ranges import ranges, union
from sentineld.model.records import ACCESS_UNKNOWN, ACCESS_WRITE, NO_ACCESS, Records
from sentineld.model.sampled import pages_represented, sampled_page_count
from sentineld.profile.steps import Step, boundary_records

PAGE_BITS = 40
"""Number of low bits of a key that hold the page number. Addresses have 48 bits, of which 12 or
more are the offset in the page."""

PAGE_MASK = (1 << PAGE_BITS) - 1
"""Mask of the page number in a key."""

CHUNK_PAGES = 512
"""The number of pages that one page table maps, and the largest number of pages that one record of
an access represents."""

PART_PAGES = 1 << 18
"""Approximate number of pages whose accesses are attributed to tensors at one time. This takes up
to 200 bytes of memory for each page, and the samples of a step can represent several times as many
pages as the machine's memory has."""


class SampledPairs(NamedTuple):
    """The (stretch, page) pairs of a step for which page sampling saw an access."""

    keys: Integers  # page + (stretch << PAGE_BITS), ascending
    written: Mask
    accesses: Integers  # seen accesses; more than 1 only if the page was armed again in the stretch


def sampled_pairs(step: Step, samples: Records) -> SampledPairs:
    """The step's (stretch, page) pairs with sampled accesses. Raises SentinelError if a boundary of
    the step has no epoch."""
    epochs = _epochs(step)
    accessed = samples[(samples["flags"] & NO_ACCESS) == 0]
    first, inside = _first_keys(epochs, step.end_epoch, accessed)
    wrote = (accessed["flags"][inside] & ACCESS_WRITE) != 0
    # One record of a huge page represents all its pages.
    pages = pages_represented(accessed[inside])
    first, pages, wrote, times = _merge_equal(first, pages, wrote)
    keys, row = np.unique(ranges(first, pages), return_inverse=True)
    written = np.bincount(row, np.repeat(wrote, pages), minlength=len(keys)) > 0
    accesses = np.bincount(row, np.repeat(times, pages), minlength=len(keys))
    return SampledPairs(keys, written, accesses.astype(np.int64))


def _merge_equal(
    first: Integers, pages: Integers, wrote: Mask
) -> tuple[Integers, Integers, Mask, Integers]:
    """Merge records of the same pages and stretch; returns the distinct ranges of keys (first key,
    number of pages), whether one of the records is a write, and the number of records.

    Without merging, a huge page that is armed again many times within a stretch would need memory
    for 512 keys per record."""
    if not len(first) or int(pages.max()) == 1:
        return first, pages, wrote, np.ones(len(first), np.int64)
    order = np.lexsort((pages, first))
    first, pages, wrote = first[order], pages[order], wrote[order]
    begins = np.flatnonzero(np.append(True, (np.diff(first) != 0) | (np.diff(pages) != 0)))
    counts = np.diff(np.append(begins, len(first)))
    return first[begins], pages[begins], np.logical_or.reduceat(wrote, begins), counts


def sample_parts(step: Step, samples: Records) -> Iterator[Records]:
    """Divide the records of the step's accesses into parts that represent about PART_PAGES pages
    each. All records of one (stretch, page) pair are in the same part. Records of other epochs and
    records that are not accesses may be left out. Raises SentinelError in the same case as
    sampled_pairs()."""
    if sampled_page_count(samples) <= PART_PAGES:
        yield samples
        return
    epochs = _epochs(step)
    accessed = samples[(samples["flags"] & NO_ACCESS) == 0]
    chunk, inside = _first_keys(epochs, step.end_epoch, accessed)
    # The pages of one record lie in one chunk, that is, in one page table.
    chunk //= CHUNK_PAGES
    order = np.argsort(chunk, kind="stable")
    accessed, chunk = accessed[inside][order], chunk[order]
    del order, inside
    begins = np.flatnonzero(np.diff(chunk, prepend=-1))
    del chunk
    before = np.append(0, np.cumsum(pages_represented(accessed)))
    cuts = begins[np.flatnonzero(np.diff(before[begins] // PART_PAGES, prepend=-1))].tolist()
    del before, begins
    for begin, end in itertools.pairwise([*cuts, len(accessed)]):
        yield accessed[begin:end]


def unknown_pairs(step: Step, samples: Records) -> int:
    """Number of (stretch, page) pairs for which it is unknown whether the page was accessed,
    because the page can't be armed, or because something other than the module unarmed it. Raises
    SentinelError in the same case as sampled_pairs()."""
    seen = sampled_pairs(step, samples).keys
    first, past = union(*unknown_ranges(step, samples))
    counts = past - first - (np.searchsorted(seen, past) - np.searchsorted(seen, first))
    return int(counts.sum())


def unknown_ranges(step: Step, samples: Records) -> tuple[Integers, Integers]:
    """Ranges of keys (first, past-the-end) for which an access may have been missed.

    The ranges may overlap, and may contain keys for which an access was seen.
    """
    epochs = boundary_records(step)["address"].astype(np.int64)
    unknown = samples[(samples["flags"] & ACCESS_UNKNOWN) != 0]
    first, inside = _first_keys(epochs, step.end_epoch, unknown)
    return first, first + pages_represented(unknown[inside])


def _epochs(step: Step) -> Integers:
    """The epochs that begin at the step's boundaries. Raises SentinelError if one is missing."""
    epochs: Integers = boundary_records(step)["address"].astype(np.int64)
    if not np.all(epochs > 0):
        raise SentinelError(
            "failed", f"step {step.number} has boundaries without an epoch", "sample another step"
        )
    return epochs


def _first_keys(
    epochs: Integers, end_epoch: int, samples: Records
) -> tuple[Integers, npt.NDArray[np.bool_]]:
    """The key of the first page of each sample in the step's epochs, and a mask that selects
    these samples."""
    epoch = samples["epoch"].astype(np.int64)
    stretch = np.searchsorted(epochs, epoch, side="right") - 1
    inside = (stretch >= 0) & (epoch < (end_epoch or np.iinfo(np.int64).max))
    return samples["page"].astype(np.int64)[inside] + (stretch[inside] << PAGE_BITS), inside
