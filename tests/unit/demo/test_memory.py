# SPDX-License-Identifier: Apache-2.0
"""The demo parses /proc/zoneinfo and the kernel's files about a process's mappings."""

from __future__ import annotations

import gc
import mmap
import os

from tests.demo import memory

ZONEINFO = """\
Node 0, zone      DMA
  per-node stats
      nr_inactive_anon 21
  pages free     3840
        boost    0
        min      21
        low      26
        high     31
        spanned  4095
        present  3998
        managed  3840
        cma      0
        protection: (0, 992, 992, 992, 992)
      nr_free_pages 3840
      nr_zone_inactive_anon 0
Node 0, zone    DMA32
  pages free     100000
        boost    0
        min      700
        low      875
        high     1050
        spanned  258048
        present  258048
        managed  254000
        cma      0
        protection: (0, 0, 0, 0, 0)
      nr_free_pages 100000
Node 0, zone   Normal
  pages free     0
        boost    0
        min      0
        low      0
        high     0
        spanned  0
        present  0
        managed  0
        cma      0
        protection: (0, 0, 0, 0, 0)
Node 1, zone    DMA32
  pages free     5000
        boost    0
        min      1
        low      2
        high     3
        spanned  393216
        present  393216
        managed  390000
        protection: (0, 0, 0, 0, 0)
      nr_free_pages 5000
"""


def test_zones_are_parsed_and_empty_ones_left_out() -> None:
    assert memory.zones(ZONEINFO) == [
        memory.Zone(node=0, name="DMA", free=3840, high=31, reserve=992),
        memory.Zone(node=0, name="DMA32", free=100000, high=1050, reserve=0),
        memory.Zone(node=1, name="DMA32", free=5000, high=3, reserve=0),
    ]


def test_the_running_kernels_zones_are_parsed() -> None:
    with open("/proc/zoneinfo") as file:
        found = memory.zones(file.read())
    assert sum(zone.free for zone in found) > 0
    assert all(zone.high > 0 for zone in found if zone.name != "Movable")


def test_only_nohugepage_mappings_count_as_tensor_memory() -> None:
    size = 8 << 20
    gc.collect()  # unmaps memory that earlier tests left
    with mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as advised:
        before = memory.tensor_ranges(os.getpid())
        advised.madvise(mmap.MADV_NOHUGEPAGE)
        advised[: 3 * mmap.PAGESIZE] = bytes(3 * mmap.PAGESIZE)
        after = memory.tensor_ranges(os.getpid())
        resident = memory.tensor_bytes_by_node(os.getpid())
    assert sum(end - start for start, end in after) - sum(e - s for s, e in before) == size
    assert sum(resident.values()) >= 3 * mmap.PAGESIZE
