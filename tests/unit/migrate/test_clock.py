# SPDX-License-Identifier: Apache-2.0
"""The machine's clock: a wait ends when its condition becomes true, or when its time has passed."""

from __future__ import annotations

import threading
import time

from sentineld.migrate.clock import Clock

MS_NS = 1_000_000


def test_a_wait_ends_early_if_what_it_waits_for_arrives() -> None:
    news, arrived = threading.Condition(), threading.Event()

    def arrive() -> None:
        with news:
            arrived.set()
            news.notify()

    thread = threading.Thread(target=arrive)
    with news:
        thread.start()
        assert Clock().wait(news, arrived.is_set, 120_000 * MS_NS)
    thread.join()


def test_a_wait_or_sleep_takes_its_time() -> None:
    clock, began_ns = Clock(), time.monotonic_ns()
    news = threading.Condition()
    with news:
        assert not clock.wait(news, lambda: False, 30 * MS_NS)
    clock.sleep(30 * MS_NS)
    assert clock.now_ns() - began_ns >= 50 * MS_NS
