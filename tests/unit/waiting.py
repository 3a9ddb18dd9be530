# SPDX-License-Identifier: Apache-2.0
"""Wait for another thread."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_S = 120.0


def wait(done: Callable[[], object]) -> None:
    """Wait until done() is true; fail after PATIENCE_S."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not done():
        assert time.monotonic() < deadline_s, "timed out"
        time.sleep(0.005)
