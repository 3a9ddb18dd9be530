# SPDX-License-Identifier: Apache-2.0
"""Names for the numpy arrays that most functions take and return."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

Table = npt.NDArray[np.void]
"""Rows of a structured dtype."""
