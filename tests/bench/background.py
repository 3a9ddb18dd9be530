# SPDX-License-Identifier: Apache-2.0
"""Repeats an action in a background thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def repeat_in_background(act: Callable[[], object]) -> Iterator[None]:
    """Call act() repeatedly in a thread while the context is active.

    If act() raises RuntimeError, the calls end, and the error is raised when the context ends.
    """
    stop = threading.Event()
    failed: list[RuntimeError] = []

    def run() -> None:
        try:
            while not stop.is_set():
                act()
        except RuntimeError as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    if failed:
        raise failed[0]
