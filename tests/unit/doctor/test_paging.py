# SPDX-License-Identifier: Apache-2.0
"""Checks of paged tiers, on a made-up root folder."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sentineld.base.errors import SentinelError
from sentineld.doctor import paging
from sentineld.doctor.findings import Status, System
from tests.unit.files import write


@pytest.fixture
def paged(system: System, monkeypatch: pytest.MonkeyPatch) -> System:
    """A machine that can move pages, with 100 GiB free in /data."""
    (system.root / "data").mkdir()
    monkeypatch.setattr(paging, "require_move", lambda _: None)
    room(monkeypatch, 100 << 30)
    return replace(system, tiers={"paged": "/data"})


def room(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    usage = shutil.disk_usage("/")._replace(free=free)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)


def test_paged_tiers_are_checked_only_if_they_are_selected(system: System, paged: System) -> None:
    assert paging.paging(system).status is Status.SKIP
    found = paging.paging(paged)
    assert (found.status, found.cause) == (Status.OK, "/data has 100.0 GiB free")
    # If a daemon is running, its tiers are checked instead of the configured ones.
    assert paging.paging(replace(paged, daemon={"paged": ""})).status is Status.SKIP
    assert paging.paging(replace(system, daemon={"paged": "/data"})).status is Status.OK


def test_a_rotating_disk_is_reported(paged: System) -> None:
    device = (paged.root / "data").stat().st_dev
    disk = f"sys/dev/block/{os.major(device)}:{os.minor(device)}"
    write(paged.root, f"{disk}/queue/rotational", "1\n")
    found = paging.paging(paged)
    assert found.status is Status.WARN
    assert "rotating" in found.cause
    assert "tiers.paged" in found.fix


@pytest.mark.parametrize(
    ("kind", "status"), [("tmpfs", Status.FAIL), ("ramfs", Status.FAIL), ("ext4", Status.OK)]
)
def test_a_file_system_in_memory_is_reported(paged: System, kind: str, status: Status) -> None:
    mounts = [
        "22 1 999:1 / / rw,relatime shared:1 - tmpfs none rw",
        f"36 22 0:77 / /data rw,noatime shared:2 master:1 - {kind} none rw",
    ]
    write(paged.root, "proc/self/mountinfo", "\n".join(mounts))
    found = paging.paging(paged)
    assert found.status is status
    assert (kind in found.cause) is (status is Status.FAIL)


def test_a_full_disk_is_reported(paged: System, monkeypatch: pytest.MonkeyPatch) -> None:
    room(monkeypatch, 1 << 30)
    found = paging.paging(paged)
    assert (found.status, found.cause) == (Status.WARN, "/data has only 1.0 GiB free")


def test_a_missing_directory_is_reported(paged: System, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(paging, "require_move", lambda _: None)
    for folder in ("/absent", "relative"):
        found = paging.paging(replace(paged, tiers={"paged": folder}))
        assert (found.status, found.code) == (Status.FAIL, "bad-config")
        assert folder in found.cause


def test_a_kernel_that_cannot_move_pages_is_reported(
    paged: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Path) -> Any:
        raise SentinelError("no-second-tier", "cannot move pages", "use Linux 6.8 or later")

    monkeypatch.setattr(paging, "require_move", refuse)
    found = paging.paging(paged)
    assert (found.status, found.code) == (Status.FAIL, "no-second-tier")
    assert found.fix == "use Linux 6.8 or later"
