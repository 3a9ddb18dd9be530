# SPDX-License-Identifier: Apache-2.0
"""Looks at the accessed bits of sampled pages during a window, in a separate thread."""

from __future__ import annotations

import time
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

    def begin(self, frames: Integers) -> None:
        """Begin to watch pages. frames: (S,), their page frame numbers; 0 if a frame is not
        known."""
        self._count = len(frames)
        self._job = Background(self._name, lambda: self._watch(frames))

    def result(self) -> Look | None:
        """The result of the window; None while the window lasts, or if the result has already been
        taken, or if no window has begun."""
        job = self._job
        if job is None or not job.done():
            return None
        self._job = None
        if job.result is None:
            return Look(np.zeros(self._count, np.bool_), 0.0, job.problem)
        return Look(*job.result, None)

    @property
    def busy(self) -> bool:
        """Whether a window has begun whose result has not been taken yet."""
        return self._job is not None

    def _watch(self, frames: Integers) -> tuple[Mask, float]:
        began_s = time.thread_time()
        accessed = np.zeros(len(frames), np.bool_)
        known = frames > 0
        if len(frames) and not known.any():
            raise SentinelError(
                "not-permitted",
                "the daemon may not read page frame numbers",
                "give the daemon CAP_SYS_ADMIN",
            )
        accessed[known] = accessed_frames(frames[known], WINDOW_S)
        return accessed, time.thread_time() - began_s
