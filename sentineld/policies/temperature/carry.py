# SPDX-License-Identifier: Apache-2.0
"""Carries the state of units over to the new units when the set of units changes."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from sentineld.model.arrays import Integers

Kind = TypeVar("Kind", bound=np.generic)


def carried(values: npt.NDArray[Kind], origin: Integers) -> npt.NDArray[Kind]:
    """The values of the new units.

    values: (N,), one value for each earlier unit. origin: (M,), for each new unit the index of the
    earlier unit that it continues, or -1. Units without an origin get 0.
    """
    found: npt.NDArray[Any] = np.zeros(len(origin), values.dtype)
    known = origin >= 0
    found[known] = values[origin[known]]
    return found
