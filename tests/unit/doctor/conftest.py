# SPDX-License-Identifier: Apache-2.0
"""A system whose root folder is made up."""

from __future__ import annotations

from pathlib import Path

import pytest

from sentineld.doctor.findings import System
from tests.unit.doctor.rootfolder import RELEASE
from tests.unit.files import write


@pytest.fixture
def system(tmp_path: Path) -> System:
    write(tmp_path, "proc/sys/kernel/osrelease", RELEASE)
    write(tmp_path, "proc/sys/kernel/arch", "x86_64")
    return System(tmp_path)
