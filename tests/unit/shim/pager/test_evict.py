# SPDX-License-Identifier: Apache-2.0
"""Pages that the kernel has pinned stay in memory, and cost little time."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from tests.unit.shim.paged import PAGE, Paged, backing_file
from tests.unit.shim.pager.conftest import FILE_PAGES, PAGES, Link

PINNED = 100


def test_pinned_pages_are_tried_often_only_once(link: Link, tmp_path: Path) -> None:
    library = link("busy.c")
    file = backing_file(tmp_path, FILE_PAGES)
    paged = Paged(library, file, FILE_PAGES, PAGES, PAGES)
    paged.born(0, 300)
    paged.fill(0, 300, 1)
    busy_from, busy_to = (ctypes.c_uint64.in_dll(library, f"busy_{end}") for end in ("from", "to"))
    first = paged.words.ctypes.data + 50 * PAGE
    busy_to.value, busy_from.value = first + PINNED * PAGE, first
    assert paged.evict(0, 300) == 300 - PINNED
    paged.settle()
    # The pager tries to move one of the pinned pages nine times, and each other pinned page twice.
    assert ctypes.c_uint.in_dll(library, "busy_tries").value == 9 + 2 * (PINNED - 1)
    assert paged.holds(50, PINNED, 1)
    assert paged.counts().faults == 0
    busy_to.value = busy_from.value = 0
    assert paged.evict(0, 300) == PINNED
    paged.settle()
    assert paged.holds(0, 300, 1)
    paged.stop()
    os.close(file)
