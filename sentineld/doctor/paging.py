# SPDX-License-Identifier: Apache-2.0
"""Checks of paged tiers: the disk, and the kernel's userfaultfd."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from sentineld.base.errors import SentinelError
from sentineld.base.units import format_bytes
from sentineld.doctor.findings import Finding, Status, System
from sentineld.host.mounts import IN_MEMORY, filesystem_of
from sentineld.host.userfaultfd import require_move

ROOM_BYTES_MIN = 8 << 30
"""A warning is given if the disk has less free space than this."""


def paging(system: System) -> Finding:
    """Whether paged tiers work. The check is skipped if the running daemon does not use paged
    tiers or, without a running daemon, if the configuration does not select paged tiers."""
    if isinstance(system.daemon, SentinelError):
        name, absent = system.tiers.get("paged"), "the configuration does not select paged tiers"
    else:
        name, absent = system.daemon["paged"], "the daemon does not use paged tiers"
    if not name:
        return Finding("paging", Status.SKIP, absent)
    folder = Path(str(name))
    try:
        require_move(system.root / "dev/userfaultfd")
        place = system.root / folder.relative_to("/")
        room_bytes = shutil.disk_usage(place).free
    except SentinelError as error:
        return Finding("paging", Status.FAIL, error.message, error.hint, error.code)
    except (OSError, ValueError) as error:
        cause = f"tiers.paged: {folder}: {error}"
        return Finding("paging", Status.FAIL, cause, "name an existing directory", "bad-config")
    kind = filesystem_of(folder.resolve(), system.text("proc/self/mountinfo") or "")
    if kind in IN_MEMORY:
        return Finding(
            "paging",
            Status.FAIL,
            f"{folder} is on {kind}, which is itself in memory: evictions free no memory",
            "name a directory on an NVMe or SATA SSD: tiers.paged",
            "bad-config",
        )
    if _rotating(system, place):
        return Finding(
            "paging",
            Status.WARN,
            f"{folder} is on a rotating disk, which reads single pages slowly",
            "name a directory on an NVMe or SATA SSD: tiers.paged",
        )
    if room_bytes < ROOM_BYTES_MIN:
        return Finding(
            "paging",
            Status.WARN,
            f"{folder} has only {format_bytes(room_bytes)} free",
            "free some space, or name another directory: tiers.paged",
        )
    return Finding("paging", Status.OK, f"{folder} has {format_bytes(room_bytes)} free")


def _rotating(system: System, place: Path) -> bool:
    """Whether the disk of a directory is a rotating disk, as far as the kernel reports it."""
    device = place.stat().st_dev
    number = f"sys/dev/block/{os.major(device)}:{os.minor(device)}"
    # A partition has no directory `queue` in sysfs, but the disk has one. The disk's directory is
    # the parent of the partition's directory.
    found = system.text(f"{number}/queue/rotational") or system.text(
        f"{number}/../queue/rotational"
    )
    return found == "1"
