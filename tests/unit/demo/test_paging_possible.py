# SPDX-License-Identifier: Apache-2.0
"""The demo's first part detects and refuses a folder in memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from sentineld.base.errors import SentinelError
from sentineld.host.userfaultfd import require_move
from tests.demo.paging.possible import IN_MEMORY, ImpossibleError, filesystem_of, survey

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


def test_a_folder_in_memory_is_refused() -> None:
    """The test runs the real survey on a real tmpfs."""
    folder = Path("/dev/shm")
    mounts = Path("/proc/self/mountinfo").read_text()
    if filesystem_of(folder, mounts) not in IN_MEMORY:
        pytest.skip(f"{folder} is no tmpfs")
    try:
        require_move()
    except SentinelError as error:
        with pytest.raises(ImpossibleError, match=error.message):
            survey(folder, swap_wanted=False)
        return
    with pytest.raises(ImpossibleError, match=r"is in memory \(tmpfs\).*DEMO_FOLDER"):
        survey(folder, swap_wanted=False)
