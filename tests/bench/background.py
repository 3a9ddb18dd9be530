# SPDX-License-Identifier: Apache-2.0
"""What a training does while something else waits for its steps."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def again_and_again(act: Callable[[], object]) -> Iterator[None]:
    """Act over and over meanwhile, in another thread; raises the RuntimeError that ended it."""
    enough = threading.Event()
    failed: list[RuntimeError] = []

    def run() -> None:
        try:
            while not enough.is_set():
                act()
        except RuntimeError as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        enough.set()
        thread.join()
    if failed:
        raise failed[0]
