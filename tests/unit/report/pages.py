# SPDX-License-Identifier: Apache-2.0
"""Decodes the tables of numbers in the figures of a report page."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np


def unpacked(table: dict[str, Any]) -> np.ndarray[Any, np.dtype[Any]]:
    return np.frombuffer(base64.b64decode(table["data"]), f"<{table['type']}")
