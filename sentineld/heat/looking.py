# SPDX-License-Identifier: Apache-2.0
"""Looks at the accessed bits of sampled pages during a window, in a separate thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from sentineld.base.background import Background
from sentineld.base.errors import SentinelError
from sentineld.model.arrays import Integers, Mask
from sentineld.observe.accessed_frames import accessed_frames

WINDOW_S = 0.5
"""Length of a window, the period in which a scan watches the sampled pages. A page counts as used
if it is accessed at least once in a window."""

REREAD_S = 2.0
"""While the thread waits for DAMON, it reads the pages' frames again at this interval, because they
may have changed. It does not read them while it has DAMON: a process can keep its address space
locked, and then the read would stop all sessions that use DAMON."""


class Look(NamedTuple):
    """The result of a window."""

    accessed: Mask  # (S,), for each sampled page; all false if there was a problem
    cpu_s: float
    problem: SentinelError | None  # why no accessed bits could be read


class Looking:
    """Runs one window at a time."""

    def __init__(self, name: str) -> None:
        """name: of the thread."""
        self._name = name
        self._job: Background[tuple[Mask, float]] | None = None
        self._count = 0
        self._since_s: float | None = None
        """Since when the session has been waiting for DAMON; None after a window."""
        self._in_window = False
        self._ended = False

    def begin(self, frames: Callable[[], Integers], count: int, wait_s: float) -> None:
        """Begin to watch pages as soon as no other session uses DAMON.

        frames: reads the pages' frame numbers, (count,); 0 if a frame is not known. Another thread
            calls it, before it waits for DAMON and again every REREAD_S seconds of the wait.
        wait_s: time limit for waiting for DAMON. After it, or if all pages have left memory while
            the thread waited, the result has the problem "busy".
        """
        if self._since_s is None:
            self._since_s = time.monotonic()
        since_s = self._since_s
        self._count = count
        self._in_window = False
        self._job = Background(self._name, lambda: self._watch(frames, wait_s, since_s))

    def result(self) -> Look | None:
        """The result of the window; None while the window lasts, or if the result has already been
        taken, or if no window has begun."""
        job = self._job
        if job is None or not job.done():
            return None
        self._job = None
        if job.problem is None or job.problem.code != "busy":
            self._since_s = None
        if job.result is None:
            return Look(np.zeros(self._count, np.bool_), 0.0, job.problem)
        return Look(*job.result, None)

    @property
    def busy(self) -> bool:
        """Whether a window has begun whose result has not been taken yet. False while the thread
        waits for DAMON."""
        return self._job is not None and self._in_window

    def end(self) -> None:
        """Begin no window any more, because the session has ended."""
        self._ended = True

    def _watch(
        self, frames: Callable[[], Integers], wait_s: float, since_s: float
    ) -> tuple[Mask, float]:
        began_s, until_s = time.thread_time(), time.monotonic() + wait_s
        found = frames()
        if self._count and not found.any():
            raise SentinelError(
                "not-permitted",
                "the daemon may not read page frame numbers",
                "give the daemon CAP_SYS_ADMIN",
            )
        while True:
            known = found > 0
            if self._count and not known.any():
                # Without this error, all pages would count as not accessed.
                raise SentinelError(
                    "busy", "the sampled pages left memory while the session waited for DAMON"
                )
            accessed = np.zeros(self._count, np.bool_)
            try:
                accessed[known] = self._window(found[known], until_s, since_s)
            except SentinelError as error:
                if error.code != "busy" or self._ended or time.monotonic() >= until_s:
                    raise
                found = frames()
            else:
                return accessed, time.thread_time() - began_s

    def _window(self, frames: Integers, until_s: float, since_s: float) -> Mask:
        """Wait for DAMON, up to REREAD_S, and watch the frames. Raises SentinelError("busy")."""

        def ready() -> Integers:
            self._in_window = True
            if self._ended:
                raise SentinelError("busy", "the session has ended")
            return frames

        if not len(frames):
            return np.zeros(0, np.bool_)
        wait_s = min(max(until_s - time.monotonic(), 0.0), REREAD_S)
        return accessed_frames(ready, WINDOW_S, wait_s=wait_s, since_s=since_s)
