# SPDX-License-Identifier: Apache-2.0
"""The thread that serves faults wakes the threads that wait until the pager is settled."""

from __future__ import annotations

import os
from pathlib import Path

from tests.unit.shim.paged import Paged, backing_file
from tests.unit.shim.pager.conftest import FILE_PAGES, PAGES, Link


def test_a_fault_on_a_page_that_has_arrived_ends_the_wait(link: Link, tmp_path: Path) -> None:
    """A fork waits until the pager is settled, and holds locks meanwhile. So if the end of the last
    fault did not wake the thread that forks, the training would hang."""
    library = link("two_faults.c", "workers_add pthread_cond_wait")
    file = backing_file(tmp_path, FILE_PAGES)
    paged = Paged(library, file, FILE_PAGES, PAGES, PAGES)
    paged.fill_and_evict(32)
    assert paged.ask("test_settles_between_faults")
    assert paged.holds(0, 32, 1)
    paged.stop()
    os.close(file)
