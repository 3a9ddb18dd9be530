# SPDX-License-Identifier: Apache-2.0
"""Reading small files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sentineld.base.small_file import CHUNK_BYTES, read_small_file


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, 2 * CHUNK_BYTES + 7])
def test_the_whole_file_is_read(tmp_path: Path, size: int) -> None:
    content = os.urandom(size)
    (tmp_path / "file").write_bytes(content)
    assert read_small_file(str(tmp_path / "file")) == content


def test_a_file_of_the_kernel_is_read() -> None:
    assert read_small_file("/proc/self/stat").startswith(b"%d " % os.getpid())


def test_no_descriptor_stays_open(tmp_path: Path) -> None:
    before = os.listdir("/proc/self/fd")
    with pytest.raises(IsADirectoryError):
        read_small_file(str(tmp_path))
    with pytest.raises(FileNotFoundError):
        read_small_file(str(tmp_path / "none"))
    assert os.listdir("/proc/self/fd") == before
