# SPDX-License-Identifier: Apache-2.0
"""The memory of accessor.py: how each chunk is accessed while a backend watches."""

from __future__ import annotations

from enum import IntEnum

PAGE = 4096
CHUNK_PAGES = 4096
CHUNK_BYTES = CHUNK_PAGES * PAGE


class Chunk(IntEnum):
    """Chunks in the order of their addresses; behind them is a written but unwatched chunk."""

    READ = 0
    UNTOUCHED = 1  # resident, not accessed in the window
    WRITTEN = 2
    NEVER = 3  # no page is resident
    SLOW = 4  # read; its pages are on node 1
    BORN = 5  # absent before the first window, in which it is written
    WRITTEN_THEN_READ = 6


CHUNKS = len(Chunk)
