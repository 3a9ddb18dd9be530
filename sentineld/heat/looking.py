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

    def begin(self, frames: Callable[[], Integers], count: int, wait_s: float) -> None:
        """Begin to watch pages as soon as no other session uses DAMON.

        frames: reads the pages' frame numbers, (count,); 0 if a frame is not known. It is called
            from another thread when DAMON is free. wait_s: time limit for waiting for DAMON; after
            it, the result has the problem "busy".
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
        waits for DAMON: if the session ends then, no window begins, because the pages' frames are
        not known any more."""
        return self._job is not None and self._in_window

    def _watch(
        self, frames: Callable[[], Integers], wait_s: float, since_s: float
    ) -> tuple[Mask, float]:
        began_s = time.thread_time()
        accessed = np.zeros(self._count, np.bool_)
        known = np.zeros(self._count, np.bool_)

        def read() -> Integers:
            self._in_window = True
            found = frames()
            known[:] = found > 0
            if not known.any():
                raise SentinelError(
                    "not-permitted",
                    "the daemon may not read page frame numbers",
                    "give the daemon CAP_SYS_ADMIN",
                )
            return found[known]

        if self._count:
            found = accessed_frames(read, WINDOW_S, wait_s=wait_s, since_s=since_s)
            accessed[known] = found
        return accessed, time.thread_time() - began_s
