# SPDX-License-Identifier: Apache-2.0
"""Holds the pager's reads and evictions (held.c), while a thread waits for a page."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

from tests.unit.shim.paged import PATIENCE_S, Paged


@contextmanager
def hold(library: ctypes.CDLL, what: str) -> Iterator[None]:
    """Until the end of the `with` block, hold the "reads" of the file, or the "checksums" with
    which evictions begin. library: the fixture `held`."""
    held = ctypes.c_int.in_dll(library, f"held_{what}")
    held.value = 1
    try:
        yield
    finally:
        held.value = 0


class Reader:
    """A thread that reads a page in a system call, so that it does not hold Python's lock while it
    waits for the page."""

    def __init__(self, paged: Paged, page: int) -> None:
        """Returns when the pager has counted the thread's fault."""
        self._paged, self._page = paged, page
        self._pipe = os.pipe()
        self.thread = Thread(target=self._read, daemon=True)
        faults, deadline_s = paged.counts().faults, time.monotonic() + PATIENCE_S
        self.thread.start()
        while paged.counts().faults == faults:
            assert time.monotonic() < deadline_s
            time.sleep(0.001)

    def _read(self) -> None:
        os.write(self._pipe[1], memoryview(self._paged.words[self._page]))

    def ends(self, within_s: float) -> bool:
        """Whether the thread ends in this time. If not, ends it by a birth of the page."""
        self.thread.join(within_s)
        ended = not self.thread.is_alive()
        if not ended:
            self._paged.born(self._page, 1)
            self.thread.join(PATIENCE_S)
        for end in self._pipe:
            os.close(end)
        return ended
