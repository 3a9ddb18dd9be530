# SPDX-License-Identifier: Apache-2.0
"""The file system of a folder, found in a made-up mountinfo."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sentineld.host.mounts import filesystem_of, read_mountinfo

MOUNTS = r"""21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
22 21 0:5 / /dev rw,nosuid shared:2 - devtmpfs udev rw
30 21 0:40 / /data rw - tmpfs tmpfs rw
31 30 8:2 / /data/my\040disk rw - xfs /dev/sdb1 rw
32 21 0:41 / /twice rw - ext4 /dev/sdc1 rw
33 32 0:42 / /twice rw master:3 - tmpfs tmpfs rw
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/home/alice", "ext4"),
        ("/data", "tmpfs"),
        ("/data/build/demo", "tmpfs"),
        ("/data/my disk/demo", "xfs"),
        ("/datashop", "ext4"),
        ("/twice/demo", "tmpfs"),
    ],
)
def test_the_file_system_of_a_folder(folder: str, kind: str) -> None:
    assert filesystem_of(Path(folder), MOUNTS) == kind


@pytest.mark.parametrize("end", [b"\r", b"\v", b"\x1c", "\N{LINE SEPARATOR}".encode(), b"\xff"])
def test_mount_points_with_hostile_names(tmp_path: Path, end: bytes) -> None:
    """Users choose the mount points of FUSE file systems, and the names of these file systems."""
    line = b"34 21 0:43 / /home/a" + end + b"b rw - fuse.x a" + end + b"b rw,user_id=1000\n"
    (tmp_path / "mountinfo").write_bytes(line + MOUNTS.encode())
    text = read_mountinfo(tmp_path / "mountinfo")
    assert filesystem_of(Path("/home/a" + os.fsdecode(end) + "b/file"), text) == "fuse.x"
    assert filesystem_of(Path("/data"), text) == "tmpfs"
