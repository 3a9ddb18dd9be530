# SPDX-License-Identifier: Apache-2.0
"""Waiting for what another thread does."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_S = 30.0


def wait(done: Callable[[], object]) -> None:
    """Until done() is true; fails after PATIENCE_S."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not done():
        assert time.monotonic() < deadline_s, "waited in vain"
        time.sleep(0.005)
