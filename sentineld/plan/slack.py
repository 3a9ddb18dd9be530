# SPDX-License-Identifier: Apache-2.0
"""Layouts whose slots also take smaller allocations, for steps whose allocation sizes vary."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sentineld.model.plan import SLOT_OPTIONAL, Layout
from sentineld.model.protocol import TENSOR_BYTES_MIN
from sentineld.profile.sizes import Sizes


def with_slack(layout: Layout, sizes: Sizes) -> Layout:
    """The layout with each slot as large as its largest allocation. A slot whose size varies also
    takes every smaller allocation of at least TENSOR_BYTES_MIN."""
    slots = layout.slots.copy()
    slots["bytes"] = sizes.largest_bytes
    slack = -(-(slots["bytes"].astype(np.int64) - TENSOR_BYTES_MIN) // TENSOR_BYTES_MIN)
    slots["slack"] = np.where(sizes.vary, np.maximum(slack, 0), 0)
    slots["flags"] |= np.where(sizes.optional, SLOT_OPTIONAL, 0).astype(np.uint32)
    return replace(layout, slots=slots)


def sizes_of(layout: Layout) -> Sizes:
    """The sizes for which with_slack() made the layout."""
    slots = layout.slots
    optional = (slots["flags"] & SLOT_OPTIONAL) != 0
    # A slot of TENSOR_BYTES_MIN has no slack even if its size varies: the slot's allocation either
    # has this size or is missing. Such a slot is optional.
    return Sizes(slots["bytes"], (slots["slack"] > 0) | optional, optional)
