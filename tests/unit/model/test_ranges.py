# SPDX-License-Identifier: Apache-2.0
"""Ranges of integers, one after the other."""

from __future__ import annotations

import numpy as np

from sentineld.model.ranges import ranges


def test_empty_ranges_contribute_nothing() -> None:
    assert ranges(np.array([5, 8, 3]), np.array([2, 0, 1])).tolist() == [5, 6, 3]
