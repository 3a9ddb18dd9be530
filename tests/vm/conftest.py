# SPDX-License-Identifier: Apache-2.0
"""The guest fixtures, for the tests of the machine itself."""

from __future__ import annotations

from .fixtures import _clean_kernel_log, fresh_guest, guest, image, kernel_guest, suite
from .installed import daemon, installed
from .prometheus import prometheus

__all__ = [
    "_clean_kernel_log",
    "daemon",
    "fresh_guest",
    "guest",
    "image",
    "installed",
    "kernel_guest",
    "prometheus",
    "suite",
]
