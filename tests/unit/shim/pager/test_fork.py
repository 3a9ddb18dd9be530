# SPDX-License-Identifier: Apache-2.0
"""A forked child limits the number of page runs that it maps from the file, so that it can still
make other mappings."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from tests.unit.shim.paged import Paged, backing_file
from tests.unit.shim.pager.conftest import Link

PAGES, FILE_PAGES, LIMIT = 1024, 2048, 400


def test_a_child_leaves_mappings_for_other_purposes(link: Link, tmp_path: Path) -> None:
    library = link("few_mappings.c", "open")
    (tmp_path / "limit").write_text(f"{LIMIT}\n")
    limit = ctypes.create_string_buffer(bytes(tmp_path / "limit"))
    ctypes.c_void_p.in_dll(library, "few_mappings").value = ctypes.addressof(limit)
    file = backing_file(tmp_path, FILE_PAGES)
    paged = Paged(library, file, FILE_PAGES, PAGES, PAGES)
    paged.born(0, PAGES)
    paged.fill(0, PAGES, 1)
    for page in range(0, PAGES, 2):
        # evict() returns 0 while too many other pages are being written to the file.
        while not paged.evict(page, 1):
            paged.settle()
    paged.settle()
    pid = paged.fork()
    if pid == 0:
        mapped = Path("/proc/self/maps").read_text().count("backing")
        os._exit(0 if mapped == LIMIT // 4 and paged.holds(0, PAGES, 1) else 1)
    assert os.waitpid(pid, 0)[1] == 0
    paged.stop()
    os.close(file)
