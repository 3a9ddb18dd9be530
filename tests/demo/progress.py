# SPDX-License-Identifier: Apache-2.0
"""The demo's progress lines."""

from __future__ import annotations

import sys
import time


def progress(text: str, begin: float) -> None:
    """Print one line to stderr, with the seconds since `begin` (time.monotonic())."""
    print(f"demo: {time.monotonic() - begin:5.0f} s  {text}", file=sys.stderr, flush=True)
