# SPDX-License-Identifier: Apache-2.0
"""Holds the pager's reads and evictions (held.c), while a thread waits for a page."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

from tests.unit.shim.paged import PAGE, PATIENCE_S, Paged


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


def accesses(paged: Paged) -> int:
    """The number of accesses that had to wait for a page."""
    counts = paged.counts()
    total: int = counts.faults + counts.births_by_fault
    return total


class Reader:
    """A thread that reads a page. It does not hold Python's lock while it waits for the page."""

    def __init__(self, paged: Paged, page: int, in_kernel: bool = True) -> None:
        """in_kernel: read the page in a system call. Returns when the pager has counted the
        access."""
        self._paged, self._page = paged, page
        self._pipe = os.pipe()
        self.thread = Thread(target=self._write if in_kernel else self._copy, daemon=True)
        before, deadline_s = accesses(paged), time.monotonic() + PATIENCE_S
        self.thread.start()
        while accesses(paged) == before:
            assert time.monotonic() < deadline_s
            time.sleep(0.001)

    def _write(self) -> None:
        os.write(self._pipe[1], memoryview(self._paged.words[self._page]))

    def _copy(self) -> None:
        page = ctypes.c_void_p(self._paged.words[self._page].ctypes.data)
        ctypes.CDLL(None).memcpy(ctypes.create_string_buffer(PAGE), page, ctypes.c_size_t(PAGE))

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
