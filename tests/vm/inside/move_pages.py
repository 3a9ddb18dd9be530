# SPDX-License-Identifier: Apache-2.0
"""Moves anonymous pages of a process to another node: `python3 move_pages.py PID PAGES FROM TO`."""

import re
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sentineld.migrate.syscalls import move_pages, query_pages

PAGE_BYTES = 4096
SEARCHED_BYTES = 256 << 20


def pages_on(pid: int, node: int) -> npt.NDArray[np.uint64]:
    """Addresses of pages on the node, in the VMA that has most of them."""
    rows = Path(f"/proc/{pid}/numa_maps").read_text()
    found = re.findall(rf"^(\w+) .*anon=.* N{node}=(\d+)", rows, re.MULTILINE)
    _, begin = max((int(count), int(address, 16)) for address, count in found)
    pages = np.arange(begin, begin + SEARCHED_BYTES, PAGE_BYTES, dtype=np.uint64)
    return pages[query_pages(pid, pages) == node]


process, count, source, destination = map(int, sys.argv[1:])
moved = move_pages(process, pages_on(process, source)[:count], destination)
assert np.count_nonzero(moved.status == destination) > 0, moved
