# SPDX-License-Identifier: Apache-2.0
"""The descriptors that the test process has open."""

from __future__ import annotations

import gc
import os


def open_descriptors() -> set[str]:
    """Return the numbers of all open descriptors.

    Unreachable objects of earlier tests are collected first: otherwise the garbage collector could
    close their descriptors between two calls.
    """
    gc.collect()
    return set(os.listdir("/proc/self/fd"))
