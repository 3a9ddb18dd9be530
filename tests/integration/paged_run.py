# SPDX-License-Identifier: Apache-2.0
"""Functions that the tests of paged tiers share."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from sentineld.shim.client import FAST_VARIABLE
from tests.integration.shim.place import Within
from tests.integration.test_daemon import Daemon
from tests.integration.test_emulated import ManagedRun, wait

DISK_RATES = """
[tiers]
slow_read_bytes_per_s = 1e9
slow_write_bytes_per_s = 1e9
"""
"""Lines of the daemon's configuration. Without them, the daemon measures the disk, which
takes some seconds."""


def tiers(folder: Path) -> tuple[str, ...]:
    """The daemon's options for paged tiers whose files are in the folder."""
    return ("--tiers", f"paged:{folder}")


def paging(run: ManagedRun) -> dict[str, int]:
    """The pager's counters. Asserts that the pager stayed within its budget, and that no write
    failed."""
    counts: dict[str, int] = run.status()["paging"]
    assert counts["frames"] <= counts["budget_pages"]
    assert counts["overruns"] == counts["write_error"] == 0
    return counts


def manage(run: ManagedRun, policy: str, fast: str) -> dict[str, Any]:
    """Manage the process; wait until the pager is within its budget; return the session's status.

    A smaller budget holds at once for new frames, but the pages that exceed it are evicted in the
    background. On a slow disk, this can take longer than a plan.
    """
    session = run.manage(policy, fast)
    wait(lambda: (now := run.status()["paging"])["frames"] <= now["budget_pages"])
    return session


def wait_steps(run: ManagedRun, steps: int) -> None:
    """Wait until the process has begun `steps` further steps."""
    begun = run.status()["step"]
    wait(lambda: run.status()["step"] >= begun + steps)


def paged_from_start(
    folder: Path,
    *arguments: str,
    daemon: Daemon,
    script: Path,
    fast: str,
    wrapper: tuple[str, ...] = (),
) -> ManagedRun:
    """Start a training that has a pager before its first step, as under `sentinelctl run --fast`.

    In contrast to `sentinelctl run`, this function does not attach the training. So the training
    never has a plan, and pages are read from the file only at page faults. wrapper: see Within
    in shim/place.py.
    """
    place = Within("env", f"{FAST_VARIABLE}={fast}", *wrapper)
    return ManagedRun(folder, *arguments, daemon=daemon, script=script, place=place)


def disk_bytes(run: ManagedRun) -> tuple[int, int]:
    """The bytes that the process has read from disks and written to disks."""
    lines = Path(f"/proc/{run.pid}/io").read_text().splitlines()
    found = {name: int(value) for name, value in (line.split(": ") for line in lines)}
    return found["read_bytes"], found["write_bytes"]


def wait_paging(run: ManagedRun, size_bytes: int) -> None:
    """Wait until bytes read from disks and bytes written to disks both exceed size_bytes."""
    wait(lambda: run.training.process.poll() is not None or min(disk_bytes(run)) > size_bytes)
    assert run.training.process.poll() is None


def file_of(run: ManagedRun) -> Path:
    """The link in /proc/PID/fd to the process's paging file."""
    found = []
    for link in Path(f"/proc/{run.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the process has closed the descriptor
            target = str(link.readlink())
            if target.endswith(" (deleted)") and not target.startswith("/memfd:"):
                found.append(link)
    (file,) = found
    return file
