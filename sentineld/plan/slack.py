# SPDX-License-Identifier: Apache-2.0
"""Layouts whose slots also take smaller allocations, for steps whose sizes vary."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sentineld.model.arrays import Mask
from sentineld.model.plan import SLOT_OPTIONAL, Layout
from sentineld.model.protocol import TENSOR_BYTES_MIN


def with_slack(layout: Layout, vary: Mask, optional: Mask) -> Layout:
    """The layout with slots that take every smaller size of a tensor that the shim serves.

    vary: (slots,), whether the slot's allocation varies in size; other slots take one size only.
    optional: (slots,), whether steps may lack the slot's allocation.
    """
    slots = layout.slots.copy()
    slack = -(-(slots["bytes"].astype(np.int64) - TENSOR_BYTES_MIN) // TENSOR_BYTES_MIN)
    slots["slack"] = np.where(vary, np.maximum(slack, 0), 0)
    slots["flags"] |= np.where(optional, SLOT_OPTIONAL, 0).astype(np.uint32)
    return replace(layout, slots=slots)
