# SPDX-License-Identifier: Apache-2.0
"""Slots that take smaller allocations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sentineld.model.plan import SLOT_OPTIONAL
from sentineld.model.protocol import TENSOR_BYTES_MIN
from sentineld.plan.slack import with_slack
from tests.unit.plan.toys import toy_plan


@pytest.mark.parametrize("size", [4096, 4097, 8192, 123457, 1 << 40])
def test_the_slack_reaches_down_to_the_smallest_tensor(size: int) -> None:
    layout = toy_plan().layout
    slots = layout.slots.copy()
    slots["bytes"] = size
    vary = np.array([True, False, False])
    slack = with_slack(replace(layout, slots=slots), vary, ~vary & False).slots["slack"]
    assert slack[1:].tolist() == [0, 0]
    assert size - TENSOR_BYTES_MIN <= int(slack[0]) * TENSOR_BYTES_MIN < size


def test_optional_slots_keep_their_other_flags() -> None:
    layout = toy_plan().layout
    optional = np.array([False, True, False])
    slots = with_slack(layout, optional, optional).slots
    assert slots["flags"].tolist() == [
        int(flags) | (SLOT_OPTIONAL if at == 1 else 0)
        for at, flags in enumerate(layout.slots["flags"])
    ]
