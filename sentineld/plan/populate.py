# SPDX-License-Identifier: Apache-2.0
"""Choose the tensors whose pages the shim populates at birth, in one system call per tensor.

Without this call, each dropped page becomes resident again by a page fault of its own. One call for
all pages of a tensor takes half as long as the page faults of a single thread. If more than
THREADS_MAX threads cause page faults in parallel, the page faults are as fast as the call.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sentineld.model.plan import SLOT_POPULATE, Layout
from sentineld.model.profile import Profile
from sentineld.plan.items import tensor_pages
from sentineld.plan.turnover import turnover

THREADS_MAX = 2
"""With more threads than this, parallel page faults are as fast as the system call."""
PAGES_MIN = 8
"""For tensors with fewer pages than this, the system call saves no time."""


def populated(layout: Layout, profile: Profile, threads: int) -> Layout:
    """The layout with SLOT_POPULATE set for tensors that gain from it.

    These are tensors whose pages are mostly absent at birth and whose bytes are all written within
    one stretch. Populating a tensor that is only partly written would take more memory than the
    training touches.

    threads: number of threads that compute.
    """
    if threads > THREADS_MAX:
        return layout
    count, pages = len(profile.tensors), tensor_pages(profile)
    everywhere = turnover(layout, profile, (0, 1, None))
    absent = np.bincount(everywhere.tensor, everywhere.pages * everywhere.fresh, minlength=count)
    rows = profile.accesses
    written = np.zeros(count, np.uint64)
    np.maximum.at(written, rows["tensor"], rows["bytes_written"])
    chosen = (2 * absent > pages) & (pages >= PAGES_MIN) & (written >= profile.tensors["bytes"])
    slots = layout.slots.copy()
    flags, populated = slots["flags"], profile.tensors["slot"][chosen]
    flags[populated] |= np.uint32(SLOT_POPULATE)
    return replace(layout, slots=slots)
