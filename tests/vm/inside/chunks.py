# SPDX-License-Identifier: Apache-2.0
"""The chunks of accessor.py's memory, and how the program accesses each of them in a window.

A window is the time between begin() and end() of a backend's watch. In a window, the program
accesses the chunks by its function once() or loop().
"""

from __future__ import annotations

from enum import IntEnum

PAGE = 4096
CHUNK_PAGES = 4096
CHUNK_BYTES = CHUNK_PAGES * PAGE


class Chunk(IntEnum):
    """Chunks in the order of their addresses. The memory has one more chunk after them, which is
    written but not watched."""

    READ = 0
    UNTOUCHED = 1  # resident, not accessed in any window
    WRITTEN = 2
    NEVER = 3  # no page is resident
    SLOW = 4  # read; its pages are on node 1
    BORN = 5  # absent before the first window; written by once(), not by loop()
    WRITTEN_THEN_READ = 6  # written and then read by once(), not accessed by loop()


CHUNKS = len(Chunk)
