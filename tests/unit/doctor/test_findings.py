# SPDX-License-Identifier: Apache-2.0
"""Checks examine a system through its root folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from sentineld.base.errors import EXIT_STATUS
from sentineld.config import Config
from sentineld.doctor.findings import Finding, Status, System
from tests.unit.doctor.rootfolder import RELEASE
from tests.unit.files import write


def test_files_are_read_below_the_root_and_stripped(system: System) -> None:
    assert system.release == RELEASE
    write(system.root, "proc/swaps", "Filename\n\n")
    assert system.text("proc/swaps") == "Filename"


def test_a_file_that_cannot_be_read_is_none(system: System) -> None:
    assert system.text("proc/modules") is None
    assert system.text("proc") is None


def test_bytes_that_are_no_text_are_replaced(system: System) -> None:
    write(system.root, "proc/version", b"Linux \xff")
    assert system.text("proc/version") == "Linux \N{REPLACEMENT CHARACTER}"


def test_an_unknown_release_is_empty(tmp_path: Path) -> None:
    assert System(tmp_path).release == ""


def test_the_default_system_is_this_machine() -> None:
    system = System()
    assert system.ebpf == Config.ebpf
    assert system.release == Path("/proc/sys/kernel/osrelease").read_text().strip()


@pytest.mark.parametrize("status", Status)
def test_a_finding_without_a_code_has_a_known_exit_status(status: Status) -> None:
    assert EXIT_STATUS[Finding("x", status, "").code] == 1
