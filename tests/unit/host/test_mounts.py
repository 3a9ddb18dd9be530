# SPDX-License-Identifier: Apache-2.0
"""The file system of a folder, found in a made-up mountinfo."""

from __future__ import annotations

from pathlib import Path

import pytest

from sentineld.host.mounts import filesystem_of

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
