# SPDX-License-Identifier: Apache-2.0
"""Moves anonymous pages of a process to another node: `python3 move_pages.py PID PAGES FROM TO`."""

import re
import sys
from pathlib import Path

import numpy as np

from sentineld.migrate.syscalls import Addresses, move_pages, page_addresses, query_pages

SEARCHED_BYTES = 256 << 20


def pages_on(pid: int, node: int) -> Addresses:
    """Addresses of pages that are on the node, in the VMA that has the most pages on the node."""
    rows = Path(f"/proc/{pid}/numa_maps").read_text()
    found = re.findall(rf"^(\w+) .*anon=.* N{node}=(\d+)", rows, re.MULTILINE)
    _, begin = max((int(count), int(address, 16)) for address, count in found)
    pages = page_addresses(begin, SEARCHED_BYTES)
    return pages[query_pages(pid, pages) == node]


process, count, source, destination = map(int, sys.argv[1:])
moved = move_pages(process, pages_on(process, source)[:count], destination)
assert np.count_nonzero(moved.status == destination) > 0, moved
