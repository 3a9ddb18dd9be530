# SPDX-License-Identifier: Apache-2.0
"""The pager searches for stray pages only if there are some. A page is stray if it is in memory,
but not planned to be there."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

from tests.unit.shim.paged import Paged, backing_file, load
from tests.unit.shim.pager.conftest import BUDGET, FILE_PAGES, PAGES, compile_pager


def test_stray_pages_are_counted_and_not_searched_in_vain(tmp_path: Path) -> None:
    compile_pager(tmp_path / "pager.so", "strays.c", "memchr")
    file = backing_file(tmp_path, FILE_PAGES)
    paged = Paged(load(tmp_path / "pager.so"), file, FILE_PAGES, PAGES, BUDGET)

    def read_all() -> int:
        """Read all pages, three times as many as the budget; returns the number of searches."""
        before = paged.counts().faults
        paged.ask("test_searches")
        assert all(paged.holds(first, 100, 1) for first in range(0, PAGES, 100))
        paged.settle()
        assert paged.counts().faults > before
        return paged.ask("test_searches")

    for first in range(0, PAGES, 100):
        paged.born(first, 100)
        paged.fill(first, 100, 1)
    # No page was ever passed to evict(), so all pages are planned to be in memory.
    assert read_all() == paged.ask("test_strays") == 0
    paged.evict(0, PAGES)
    paged.settle()
    assert paged.ask("test_strays") == 0
    assert paged.holds(0, 100, 1)
    assert paged.ask("test_strays") >= 100
    assert read_all() > 0
    random = Random(1)
    for _ in range(100):
        first, pages = random.randrange(PAGES - 100), random.randrange(1, 100)
        kind = random.choice(("evict", "fetch", "dropped", "born"))
        getattr(paged, kind)(first, pages)
        if kind in ("dropped", "born"):
            paged.born(first, pages)
            paged.fill(first, pages, 2)
        paged.words[random.randrange(PAGES)].sum()
        assert paged.ask("test_strays") >= 0
    paged.settle()
    paged.stop()
    os.close(file)
