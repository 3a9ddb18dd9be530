# SPDX-License-Identifier: Apache-2.0
"""Slots that also take allocations smaller than themselves: plans for varying sizes."""

from __future__ import annotations

import numpy as np
import pytest

from sentineld.model.plan import SLOT_OPTIONAL
from sentineld.model.protocol import TENSOR_BYTES_MIN
from sentineld.plan.slack import sizes_of, with_slack
from sentineld.profile.sizes import Sizes
from tests.unit.plan.toys import toy_plan

FIRST, SECOND, NONE = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 0]], np.bool_)


@pytest.mark.parametrize("size", [4096, 4097, 8192, 123457, 1 << 40])
def test_the_slack_reaches_down_to_the_smallest_tensor(size: int) -> None:
    sizes = Sizes(np.full(3, size, np.uint64), FIRST, NONE)
    slots = with_slack(toy_plan().layout, sizes).slots
    assert slots["bytes"].tolist() == [size] * 3
    assert slots["slack"][1:].tolist() == [0, 0]
    assert size - TENSOR_BYTES_MIN <= int(slots["slack"][0]) * TENSOR_BYTES_MIN < size


def test_optional_slots_keep_their_other_flags() -> None:
    layout = toy_plan().layout
    slots = with_slack(layout, Sizes(layout.slots["bytes"], SECOND, SECOND)).slots
    assert slots["flags"].tolist() == [
        int(flags) | (SLOT_OPTIONAL if at == 1 else 0)
        for at, flags in enumerate(layout.slots["flags"])
    ]


@pytest.mark.parametrize("size", [4096, 8193])
def test_the_sizes_are_those_that_the_layout_was_made_for(size: int) -> None:
    sizes = Sizes(np.array([9000, size, 5000], np.uint64), FIRST | SECOND, SECOND)
    found = sizes_of(with_slack(toy_plan().layout, sizes))
    for name in ("largest_bytes", "vary", "optional"):
        assert np.array_equal(getattr(found, name), getattr(sizes, name))
