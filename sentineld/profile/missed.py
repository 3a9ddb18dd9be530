# SPDX-License-Identifier: Apache-2.0
"""Accesses that page sampling may have missed.

If anything but the module unarms a page, the module logs the page as unknown: there may have been
an access that the module did not see. A watched page without a sampled access counts as not
accessed, with one exception: if a tensor's accessed pages are too few to hold the bytes that the
framework reports as read or written, unknown pages of the tensor count as accessed, too, but no
more than are needed for these bytes.
"""

from __future__ import annotations

import numpy as np

from sentineld.model.arrays import Floats, Integers
from sentineld.model.profile import page_spans
from sentineld.model.ranges import covered, union
from sentineld.model.records import ACCESS_AGAIN, ACCESS_UNKNOWN, Records
from sentineld.profile.lifetimes import StepLifetimes
from sentineld.profile.sampled_pairs import PAGE_BITS, unknown_ranges
from sentineld.profile.steps import Step


def unknown_pages(
    found: StepLifetimes,
    step: Step,
    samples: Records,
    keys: Integers,
    instances: Integers,
    page_bytes: int,
) -> tuple[Integers, Floats]:
    """For each tensor and each stretch in which the framework reported an access to the tensor, the
    number of the tensor's pages for which it is unknown whether they were accessed in the stretch.
    Returns (keys of the pairs of a stretch and a tensor, numbers).

    keys: for each access that the framework reported, stretch * number of tensors + tensor. Keys
        may repeat.
    instances: for each of these accesses, the row of found.instances that was accessed. A transient
        tensor that lives across the step's end has two rows; see INSTANCE_DTYPE (lifetimes.py).
    """
    # If ACCESS_AGAIN is also set, an access was seen, and only a later write may have been missed.
    unseen = samples["flags"] & (ACCESS_UNKNOWN | ACCESS_AGAIN) == ACCESS_UNKNOWN
    unknown = union(*unknown_ranges(step, samples[unseen]))
    count = max(len(found.instances), 1)
    keys, instances = np.divmod(np.unique(keys * count + instances), count)
    first, past = page_spans(found.instances[instances], page_bytes)
    begin = first + (keys // max(len(found.tensors), 1) << PAGE_BITS)
    pages = covered(begin, begin + past - first, unknown)
    keys, row = np.unique(keys, return_inverse=True)
    return keys, np.bincount(row, pages, minlength=len(keys)).astype(np.float64)


def filled_pages(read: Floats, written: Floats, sizes: Integers, page_bytes: int) -> Floats:
    """(N,): for each of N accesses, the number of pages that `read` or `written` bytes fill,
    whichever are more; at most all pages of its tensor. sizes: the tensors' bytes."""
    filled: Floats = np.ceil(np.maximum(read, written) / page_bytes)
    return np.minimum(filled, -(-sizes // page_bytes))
