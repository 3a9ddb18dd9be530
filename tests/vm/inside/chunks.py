# SPDX-License-Identifier: Apache-2.0
"""The memory of accessor.py: what is done with each chunk in a window."""

from __future__ import annotations

from enum import IntEnum

PAGE = 4096
CHUNK_PAGES = 4096
CHUNK_BYTES = CHUNK_PAGES * PAGE


class Chunk(IntEnum):
    """Chunks in the order of their addresses; one more, always written, follows unwatched."""

    READ = 0
    UNTOUCHED = 1  # there, but not accessed in the window
    WRITTEN = 2
    NEVER = 3  # no page is there
    SLOW = 4  # read; its pages lie on node 1
    BORN = 5  # written for the first time
    WRITTEN_THEN_READ = 6


CHUNKS = len(Chunk)
