# SPDX-License-Identifier: Apache-2.0
"""Moves and queries of pages while the pages are watched."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from sentineld.migrate.ports import PageBackend, Result


class Watched:
    """Disarms watched pages during each move and query, and lets a watch begin and end only between
    them.

    begin() and end() may be called from any thread.
    """

    def __init__(self) -> None:
        self.gaps = 0
        """See PlanMover.gaps."""
        self._backend: PageBackend | None = None
        # Held during moves and queries, so that begin() and end() take effect between them.
        self._moving = threading.Lock()

    @property
    def watched(self) -> bool:
        """Whether pages are watched."""
        return self._backend is not None

    def begin(self, backend: PageBackend, begin: Callable[[], None]) -> None:
        """See PlanMover.watch()."""
        with self._moving:
            begin()
            self._backend = backend

    def end(self, end: Callable[[], Result]) -> Result:
        """See PlanMover.unwatch()."""
        with self._moving:
            self._backend = None
            return end()

    @contextmanager
    def disarmed(
        self, ranges: Callable[[], Iterable[tuple[int, int]]], gap: bool = False
    ) -> Iterator[None]:
        """For a move or a query: if pages are watched, disarm the pages of the (start, bytes)
        ranges before it, and arm them again after it. Linux 6.1 neither moves armed pages nor
        reports their nodes; later kernels unarm the pages that they move.

        gap: whether to count this in `gaps`, because the ranges are all watched pages.
        """
        with self._moving:
            armed = self._backend
            if armed is None:
                yield
                return
            self.gaps += gap
            try:
                found = [(start, size) for start, size in ranges() if size]
                for start, size in found:
                    armed.disarm(start, size)
                try:
                    yield
                finally:
                    for start, size in found:
                        armed.arm(start, size)
            finally:
                self.gaps += gap
