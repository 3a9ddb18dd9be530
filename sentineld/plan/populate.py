# SPDX-License-Identifier: Apache-2.0
"""Which tensors' pages the shim has the kernel make at birth, all in one call.

Pages that were given back come again one by one as they are touched, each by a
fault of its own. A call for all of them takes half the time (on one thread; many
threads that fault side by side are as quick).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sentineld.model.plan import SLOT_POPULATE, Layout
from sentineld.model.profile import Profile
from sentineld.plan.items import tensor_pages
from sentineld.plan.turnover import turnover

THREADS_MAX = 2
PAGES_MIN = 8
"""For less a call gains nothing."""


def populated(layout: Layout, profile: Profile, threads: int) -> Layout:
    """The layout with SLOT_POPULATE where most of a tensor's pages are not there at its birth, and
    the step writes to all of them."""
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
    slots["flags"][profile.tensors["slot"][chosen]] |= np.uint32(SLOT_POPULATE)
    return replace(layout, slots=slots)
