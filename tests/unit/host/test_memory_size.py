# SPDX-License-Identifier: Apache-2.0
"""The size of this machine's memory."""

from __future__ import annotations

import os
import re
from pathlib import Path

from sentineld.host.memory_size import memory_bytes, tensor_bytes_max
from sentineld.shim.native import default_heap_pages


def test_the_memory_is_what_the_kernel_reports() -> None:
    found = re.search(r"^MemTotal: *([0-9]+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE)
    assert found is not None
    # In a container, lxcfs may report less memory than the machine has.
    assert memory_bytes() >= int(found.group(1)) * 1024


def test_the_shims_heap_is_within_the_limit() -> None:
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    heap_bytes = default_heap_pages(memory_bytes() // page_bytes) * page_bytes
    assert memory_bytes() < heap_bytes <= tensor_bytes_max()
