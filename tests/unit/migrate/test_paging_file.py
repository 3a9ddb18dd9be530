# SPDX-License-Identifier: Apache-2.0
"""The file that holds pages has no name and its space is reserved."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from sentineld.base.errors import SentinelError
from sentineld.migrate.paging_file import open_paging_file
from tests.unit.descriptors import open_descriptors

MIB = 1 << 20


def test_the_file_has_no_name_and_its_space_is_reserved(tmp_path: Path) -> None:
    file = open_paging_file(tmp_path, 4 * MIB)
    try:
        status = os.fstat(file)
        assert (status.st_size, status.st_nlink) == (4 * MIB, 0)
        assert status.st_blocks * 512 >= 4 * MIB
        assert not list(tmp_path.iterdir())
    finally:
        os.close(file)


def test_a_full_disk_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    before = open_descriptors()
    with pytest.raises(SentinelError, match="too little room") as caught:
        open_paging_file(tmp_path, 4 * MIB)
    assert str(tmp_path) in caught.value.message
    assert "--tiers paged" in caught.value.hint
    assert open_descriptors() <= before


@pytest.mark.parametrize("size_bytes", [0, 1 << 62, 1 << 64])
def test_no_space_is_reserved_if_there_is_too_little_room(
    size_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserved: list[int] = []
    monkeypatch.setattr(os, "posix_fallocate", lambda *arguments: reserved.append(arguments[-1]))
    before = open_descriptors()
    with pytest.raises(SentinelError, match="too little room"):
        open_paging_file(tmp_path, size_bytes)
    assert not reserved
    assert open_descriptors() <= before


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_a_missing_permission_has_a_hint_of_its_own(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "open", denied)
    with pytest.raises(SentinelError, match=os.strerror(number)) as caught:
        open_paging_file(tmp_path, MIB)
    assert "ReadWritePaths=" in caught.value.hint


@pytest.mark.parametrize("folder", ["/proc", "/nowhere"])
def test_a_folder_that_cannot_hold_files_is_reported(folder: str) -> None:
    with pytest.raises(SentinelError) as caught:
        open_paging_file(Path(folder), MIB)
    assert caught.value.code == "bad-config"
    assert folder in caught.value.message
