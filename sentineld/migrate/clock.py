# SPDX-License-Identifier: Apache-2.0
"""The clock of movers and of emulated tiers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Clock:
    """The machine's clock; tests replace it with a virtual clock."""

    def now_ns(self) -> int:
        """Return CLOCK_MONOTONIC."""
        return time.monotonic_ns()

    def sleep(self, duration_ns: int) -> None:
        """Sleep; may return a clock tick early."""
        time.sleep(duration_ns / 1e9)

    def wait(
        self, news: threading.Condition, arrived: Callable[[], bool], duration_ns: int
    ) -> bool:
        """Wait until arrived() is true, at most for this time; returns arrived(). The caller holds
        `news`, which is notified when arrived() may have become true. May return a clock tick
        early."""
        return news.wait_for(arrived, duration_ns / 1e9)
