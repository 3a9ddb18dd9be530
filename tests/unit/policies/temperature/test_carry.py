# SPDX-License-Identifier: Apache-2.0
"""Units keep their values (for example their temperatures) when they are renumbered."""

from __future__ import annotations

import numpy as np

from sentineld.policies.temperature.carry import carried


def test_units_keep_their_values_and_new_ones_have_none() -> None:
    values = np.array([7, 8, 9], np.uint32)
    found = carried(values, np.array([2, -1, 0, 0]))
    assert found.tolist() == [9, 0, 7, 7]
    assert found.dtype == np.uint32


def test_no_unit_is_new_without_earlier_units() -> None:
    assert carried(np.zeros(0, np.bool_), np.array([-1, -1])).tolist() == [False, False]
