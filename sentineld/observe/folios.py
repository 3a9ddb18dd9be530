# SPDX-License-Identifier: Apache-2.0
"""The first frames of folios, according to /proc/kpageflags.

A folio is a page frame, or several adjacent ones that the kernel manages together, such as those of
a transparent huge page. A huge page has one accessed bit, if one page-table entry maps it.
"""

from __future__ import annotations

import functools
import os
import struct
from pathlib import Path

import numpy as np

from sentineld.model.arrays import Integers

KPAGEFLAGS = Path("/proc/kpageflags")
_HEAD, _TAIL = 1 << 15, 1 << 16  # KPF_COMPOUND_HEAD, KPF_COMPOUND_TAIL
_ORDER_MAX = 18
"""A folio has at most 2^18 pages (1 GiB)."""
_FLAGS = struct.Struct("Q")


def first_frames(frames: Integers, kpageflags: Path = KPAGEFLAGS) -> Integers:
    """(F,): for each page frame, the number of the first frame of its folio; the frame itself if
    this is not known, because only root can read the file."""
    try:
        fd = os.open(kpageflags, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return frames
    try:

        @functools.cache
        def flags(frame: int) -> int:
            data = os.pread(fd, _FLAGS.size, frame * _FLAGS.size)
            return int(_FLAGS.unpack(data)[0]) if len(data) == _FLAGS.size else 0

        def first(frame: int) -> int:
            if flags(frame) & _TAIL:
                # A folio is aligned to its size.
                for order in range(1, _ORDER_MAX + 1):
                    at = frame >> order << order
                    if flags(at) & _HEAD:
                        return at
            return frame

        return np.array([first(frame) for frame in frames.tolist()], np.int64)
    except OSError:
        return frames
    finally:
        os.close(fd)
