# SPDX-License-Identifier: Apache-2.0
"""Kinds of memory, from files as the kernel writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from sentineld.model.records import PAGE_BYTES
from sentineld.observe.mappings import read_mappings
from sentineld.observe.memory_use import (
    MemoryUse,
    has_memory,
    pinned_ranges,
    read_memory_use,
    resident_bytes,
)
from tests.unit.hostile_names import running

STATUS = """Name:\tprogram
VmPeak:\t  300000 kB
VmLck:\t      64 kB
VmRSS:\t  200000 kB
RssAnon:\t  150000 kB
RssFile:\t   49000 kB
RssShmem:\t    1000 kB
VmSwap:\t    4096 kB
HugetlbPages:\t    2048 kB
"""
SMAPS = """00400000-00452000 r-xp 00000000 08:02 173521      /usr/bin/program
Size:                328 kB
VmFlags: rd ex mr mw me
7f0000000000-7f0000002000 rw-p 00000000 00:00 0
Size:                  8 kB
VmFlags: rd wr mr mw me lo ac
7f0000200000-7f0000400000 rw-p 00000000 00:0f 9          /anon_hugepage (deleted)
VmFlags: rd wr mr mw me de ht
"""


def test_kinds_of_memory(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7/status").write_text(STATUS)
    assert read_memory_use(7, tmp_path) == MemoryUse(
        anonymous_bytes=150000 << 10,
        swapped_bytes=4096 << 10,
        shared_bytes=1000 << 10,
        locked_bytes=64 << 10,
        huge_bytes=2048 << 10,
    )


def test_resident_anonymous_memory(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7/statm").write_text("75000 50000 12500 100 0 60000 0\n")
    assert resident_bytes(7, tmp_path) == 150000 << 10
    assert has_memory(7, tmp_path)


def test_a_process_without_its_main_thread_has_no_memory(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7/statm").write_text("0 0 0 0 0 0 0\n")
    assert not has_memory(7, tmp_path)
    with pytest.raises(ProcessLookupError):
        resident_bytes(7, tmp_path)


def test_locked_mappings_and_huge_pages_are_pinned(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7/smaps").write_text(SMAPS)
    assert pinned_ranges(7, tmp_path).tolist() == [
        [0x7F0000000, 0x7F0000002],
        [0x7F0000200, 0x7F0000400],
    ]


def test_names_cannot_forge_lines(tmp_path: Path) -> None:
    with running(tmp_path, "\rVmSwap:") as process:
        assert read_memory_use(process).anonymous_bytes > 0
    with running(tmp_path, "x\rVmFlags: lo") as process:
        pinned = pinned_ranges(process)[:, 0].tolist()
        own = [one for one in read_mappings(process) if one.name.startswith(str(tmp_path))]
        assert own
        assert not {one.start // PAGE_BYTES for one in own} & set(pinned)
    (tmp_path / "7").mkdir()
    smaps = SMAPS.replace("/usr/bin/program", "/tmp/x\rVmFlags: lo")
    (tmp_path / "7/smaps").write_text(smaps)
    assert len(pinned_ranges(7, tmp_path)) == 2


def test_a_process_that_has_exited(tmp_path: Path) -> None:
    for read in (read_memory_use, resident_bytes, pinned_ranges):
        with pytest.raises(ProcessLookupError):
            read(7, tmp_path)
    assert not has_memory(7, tmp_path)
