# SPDX-License-Identifier: Apache-2.0
"""The survey of the demo's first part refuses a folder on an in-memory filesystem (tmpfs), because
paging needs a disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from sentineld.base.errors import SentinelError
from sentineld.host.mounts import IN_MEMORY, filesystem_of
from sentineld.host.userfaultfd import require_move
from tests.demo.paging.possible import ImpossibleError, survey


def test_a_folder_in_memory_is_refused() -> None:
    """The test runs the real survey on a real tmpfs."""
    folder = Path("/dev/shm")
    mounts = Path("/proc/self/mountinfo").read_text()
    if filesystem_of(folder, mounts) not in IN_MEMORY:
        pytest.skip(f"{folder} is not a tmpfs")
    try:
        require_move()
    except SentinelError as error:
        with pytest.raises(ImpossibleError, match=error.message):
            survey(folder, swap_wanted=False)
        return
    with pytest.raises(ImpossibleError, match=r"is in memory \(tmpfs\).*DEMO_FOLDER"):
        survey(folder, swap_wanted=False)
