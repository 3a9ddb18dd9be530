# SPDX-License-Identifier: Apache-2.0
"""The size of this machine's memory."""

from __future__ import annotations

import ctypes
import os
import re
from pathlib import Path

import pytest

from sentineld.host.memory_size import memory_bytes, tensor_bytes_max
from sentineld.shim.native import default_heap_pages


class SysInfo(ctypes.Structure):
    """struct sysinfo; see sysinfo(2)."""

    _fields_ = (
        ("uptime", ctypes.c_long),
        ("loads", ctypes.c_ulong * 3),
        ("totalram", ctypes.c_ulong),
        ("other", ctypes.c_ulong * 5),
        ("procs", ctypes.c_ushort),
        ("high", ctypes.c_ulong * 2),
        ("mem_unit", ctypes.c_uint),
        ("padding", ctypes.c_char * 64),
    )


def total_ram_bytes() -> int:
    """The machine's memory according to sysinfo(2)."""
    found = SysInfo()
    assert ctypes.CDLL(None).sysinfo(ctypes.byref(found)) == 0
    return int(found.totalram) * int(found.mem_unit)


def test_the_memory_is_what_the_kernel_reports() -> None:
    found = re.search(r"^MemTotal: *([0-9]+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE)
    assert found is not None
    # In a container, lxcfs may report less memory than the machine has, but only in /proc.
    assert memory_bytes() >= int(found.group(1)) * 1024
    assert memory_bytes() == pytest.approx(total_ram_bytes(), rel=0.01)


def test_the_shims_heap_is_within_the_limit() -> None:
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    heap_bytes = default_heap_pages(memory_bytes() // page_bytes) * page_bytes
    assert memory_bytes() < heap_bytes <= tensor_bytes_max()
