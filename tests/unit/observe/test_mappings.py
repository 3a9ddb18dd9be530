# SPDX-License-Identifier: Apache-2.0
"""Parsing of /proc/PID/maps."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from sentineld.observe.mappings import read_mappings
from tests.unit.hostile_names import FILES, running


def test_this_process_s_mappings() -> None:
    found = read_mappings(os.getpid())
    assert any("libc" in mapped.name for mapped in found)
    assert any(mapped.name == "[stack]" for mapped in found)
    assert all(mapped.start < mapped.end and not mapped.start % mmap.PAGESIZE for mapped in found)
    assert list(found) == sorted(found)


def test_names_with_spaces_and_missing_names(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7/maps").write_text(
        "1000-3000 rw-p 00000000 00:00 0 \n"
        "ffff0000-ffff8000 r--s 00001000 08:02 17             /tmp/a b (deleted)\n"
    )
    assert read_mappings(7, tmp_path) == (
        (0x1000, 0x3000, "anonymous"),
        (0xFFFF0000, 0xFFFF8000, "/tmp/a b (deleted)"),
    )


@pytest.mark.parametrize("name", FILES, ids=ascii)
def test_files_with_hostile_names(tmp_path: Path, name: str) -> None:
    with running(tmp_path, name) as process:
        assert str(tmp_path / name) in {mapping.name for mapping in read_mappings(process)}


def test_a_process_that_has_exited(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        read_mappings(7, tmp_path)
