# SPDX-License-Identifier: Apache-2.0
"""Observes which page frames are accessed, with DAMON's operations for physical addresses.

DAMON clears the accessed bit of one page in each region, and looks at it when the sampling interval
ends. Here each region is one page frame, so the result applies to exactly this page, or to the
whole folio (folios.py) if the frame belongs to a larger one. The frames may belong to any process.
DAMON does not flush the TLB when it clears a bit, so an access through a TLB entry from before the
window can go unnoticed.

The first frame of a folio is watched in place of its other frames: before Linux 6.15, DAMON reports
these as never accessed ("mm/damon/ops: have damon_get_folio return folio even for tail pages").
Since this change, it treats all frames of a folio alike.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from sentineld.base.errors import SentinelError
from sentineld.model.arrays import Integers, Mask
from sentineld.model.records import PAGE_BYTES
from sentineld.observe.folios import first_frames
from sentineld.observe.kdamond import FRAMES, KDAMONDS, Kdamond, Sampling, usable

REGIONS_MIN = 3
"""DAMON refuses a smaller minimum number of regions."""


def frames_problem(kdamonds: Path = KDAMONDS) -> SentinelError | None:
    """The reason why accessed_frames() cannot be used now, or None."""
    return usable(kdamonds, operations=FRAMES)


def accessed_frames(
    frames: Callable[[], Integers],
    window_s: float,
    kdamonds: Path = KDAMONDS,
    wait_s: float = 0.0,
    since_s: float | None = None,
) -> Mask:
    """Watch page frames for window_s seconds (a window); returns whether each of them was accessed.

    frames: returns the numbers of the page frames, (F,). It is called when the wait is over, while
        no other session can use DAMON, so it must not block. Its errors are passed on.
    wait_s, since_s: see Kdamond.

    Blocks for one to two windows after the wait. Raises SentinelError; the code is "busy" if
    another session is still using DAMON.
    """
    kdamond = Kdamond(FRAMES, os.getpid(), kdamonds, wait_s, since_s)
    try:
        return _watched(kdamond, frames(), window_s)
    finally:
        kdamond.close()


def _watched(kdamond: Kdamond, frames: Integers, window_s: float) -> Mask:
    folios = first_frames(frames)
    watched = np.unique(folios)
    if not len(watched):
        return np.zeros(len(frames), np.bool_)
    window_us = int(window_s * 1e6)
    # Regions of one page are never split. They are never merged, either: a merged region may not be
    # larger than the watched memory divided by the minimum number of regions, and this quotient is
    # at most one page here.
    regions = max(len(watched), REGIONS_MIN)
    try:
        kdamond.start(
            ((frame * PAGE_BYTES, PAGE_BYTES) for frame in watched.tolist()),
            Sampling(window_us, window_us, regions, 2 * regions),
        )
        kdamond.take_snapshot()
        found = _starts(kdamond.tried_regions)
    except OSError as error:
        raise SentinelError(
            "failed",
            f"DAMON cannot watch page frames: {error.strerror}",
            "end other programs that use DAMON",
        ) from None
    return np.isin(folios, np.array(found, np.int64) // PAGE_BYTES)


def _starts(tried_regions: Path) -> list[int]:
    """The start of each region in the folder. Raises OSError."""
    found = []
    folder = os.open(tried_regions, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in os.listdir(folder):
            if not name.isdigit():
                continue
            fd = os.open(f"{name}/start", os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
            try:
                found.append(int(os.read(fd, 32)))
            finally:
                os.close(fd)
    finally:
        os.close(folder)
    return found
