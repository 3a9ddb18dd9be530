# SPDX-License-Identifier: Apache-2.0
"""Uses two pages of this process to test a backend that observes only writes."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Callable

import numpy as np

from sentineld.model.records import PAGE_BYTES
from sentineld.observe.backend import Target, Watch
from sentineld.observe.writefds import WriteFds


def reports_written_page(
    way: str, open_watch: Callable[[Target], Watch], open_control: Callable[[int, int], int]
) -> bool:
    """Write to one of two pages; True if the watch reports exactly that page. Raises OSError.

    way: as in WriteFds.
    open_control: opens the control descriptor that `way` needs, for the range (start, bytes).
    """
    size = 2 * PAGE_BYTES
    with mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory[0] = memory[PAGE_BYTES] = 1
        start = _address(memory)
        control_fd = open_control(start, size)
        pagemap_fd = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
        watch = open_watch(Target(os.getpid(), writes=WriteFds(way, pagemap_fd, control_fd)))
        with contextlib.closing(watch):
            watch.begin([(start, size)])
            memory[0] = 2
            seen = watch.end()
    exact: bool = seen["start"].tolist() == [start] and seen["bytes"].tolist() == [PAGE_BYTES]
    return exact


def _address(memory: mmap.mmap) -> int:
    """Address of the mapping. No view is kept, because a mapping with a view cannot be closed."""
    return int(np.frombuffer(memory, np.uint8).ctypes.data)
