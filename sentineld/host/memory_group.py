# SPDX-License-Identifier: Apache-2.0
"""Memory cgroups (v2 or v1): limit the memory of a command by a group of its own; find how much
memory a process can still get."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sentineld.base.errors import SentinelError

PROBE_S = 10.0
_JOIN = 'echo $$ > "$0" && exec "$@"'


class UnavailableError(Exception):
    """A way to limit memory does not work here; the text says why."""


@dataclass(frozen=True)
class LimitedCommand:
    """How to start a command under a memory limit."""

    prefix: tuple[str, ...]
    """The command line to put in front. The command keeps the process id of the prefix."""

    folder: Path | None = None
    """The cgroup, if sentinelctl created it; systemd removes a scope of its own."""

    def peak_bytes(self) -> int:
        """Most memory that the group has used. Needs `folder`; raises OSError."""
        assert self.folder is not None
        v2, v1 = self.folder / "memory.peak", self.folder / "memory.max_usage_in_bytes"
        return int((v2 if v2.exists() else v1).read_text())

    def close(self) -> None:
        """Remove the cgroup. It stays if it still has processes."""
        if self.folder is not None:
            with contextlib.suppress(OSError):
                self.folder.rmdir()


def limited_command(limit_bytes: int, proc: Path = Path("/proc")) -> LimitedCommand:
    """Prepare a memory limit, by the first way that works: systemd, cgroup v2, cgroup v1.

    Raises SentinelError with the reason of each way if none works.
    """
    reasons = []
    for name, way in _WAYS.items():
        try:
            return way(limit_bytes, proc)
        except UnavailableError as reason:
            reasons.append(f"{name}: {reason}")
        except OSError as error:
            reasons.append(f"{name}: {error.filename}: {error.strerror}")
    raise SentinelError(
        "failed",
        f"memory can't be limited: {'; '.join(reasons)}",
        "run as root, or in a login session of systemd",
    )


def _by_systemd(limit_bytes: int, proc: Path) -> LimitedCommand:
    """A transient scope. systemd owns the hierarchy of cgroups where it runs, so it comes first."""
    if not Path("/run/systemd/system").is_dir():
        raise UnavailableError("it does not run here")
    if (program := shutil.which("systemd-run")) is None:
        raise UnavailableError("there is no systemd-run")
    whose = () if os.geteuid() == 0 else ("--user",)
    prefix = (program, "--scope", "--quiet", *whose, "-p", f"MemoryMax={limit_bytes}", "--")
    try:
        probe = subprocess.run(
            [*prefix, "true"], capture_output=True, text=True, timeout=PROBE_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"systemd-run did not answer within {PROBE_S:.0f} s") from None
    if probe.returncode:
        raise UnavailableError(probe.stderr.strip() or f"systemd-run failed ({probe.returncode})")
    return LimitedCommand(prefix)


def _by_v2(limit_bytes: int, proc: Path) -> LimitedCommand:
    _, own = _group_of(proc, "self", "cgroup2", "")
    # A group that has processes cannot give controllers to its children (cgroup-v2.rst, "No
    # Internal Process Constraint"), except the root group.
    for parent in (own, own.parent):
        control = parent / "cgroup.subtree_control"
        if control.exists() and "memory" in control.read_text().split():
            return _made(parent, "memory.max", limit_bytes)
    raise UnavailableError(f"{own} and its parent have no memory controller for their children")


def _by_v1(limit_bytes: int, proc: Path) -> LimitedCommand:
    _, own = _group_of(proc, "self", "cgroup", "memory")
    return _made(own, "memory.limit_in_bytes", limit_bytes)


_WAYS: dict[str, Callable[[int, Path], LimitedCommand]] = {
    "systemd": _by_systemd,
    "cgroup v2": _by_v2,
    "cgroup v1": _by_v1,
}


def available_bytes(pid: int, proc: Path = Path("/proc")) -> int:
    """Memory that a process can still get: what the machine has (MemAvailable), or less if its
    memory cgroup or a group above it has a lower limit. Raises OSError."""
    meminfo = re.search(r"^MemAvailable:\s*(\d+) kB", (proc / "meminfo").read_text(), re.MULTILINE)
    found = int(meminfo[1]) << 10 if meminfo else 0
    for kind, controller, files in (
        ("cgroup2", "", ("memory.max", "memory.current")),
        ("cgroup", "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")),
    ):
        try:
            mount, group = _group_of(proc, str(pid), kind, controller)
        except UnavailableError:
            continue
        for folder in (group, *group.parents):
            if not folder.is_relative_to(mount):
                break
            found = min(found, _room_bytes(folder, *files, found))
    return found


def _room_bytes(folder: Path, limit_name: str, usage_name: str, unlimited: int) -> int:
    """The limit of a group minus its usage; page cache that the kernel can take back is free."""
    try:
        limit = (folder / limit_name).read_text().strip()
        used_bytes = int((folder / usage_name).read_text())
        cached = re.search(
            r"^(?:total_)?inactive_file (\d+)", (folder / "memory.stat").read_text(), re.MULTILINE
        )
    except OSError:
        return unlimited  # the root group has no such files
    if limit == "max":
        return unlimited
    return max(int(limit) - used_bytes + (int(cached[1]) if cached else 0), 0)


def _group_of(proc: Path, pid: str, kind: str, controller: str) -> tuple[Path, Path]:
    """(mount point of the hierarchy, folder of the process's cgroup). kind: type of the file
    system. Raises UnavailableError and OSError."""
    for line in (proc / "self/mounts").read_text().splitlines():
        _, mount, found, options, *_ = line.split()
        if found == kind and (not controller or controller in options.split(",")):
            break
    else:
        raise UnavailableError("it is not mounted")
    for line in (proc / pid / "cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            own = Path(mount) / path.lstrip("/")
            # In a container, the path can be that of the host.
            return Path(mount), own if own.is_dir() else Path(mount)
    raise UnavailableError("this process has no group in it")


def _made(parent: Path, name: str, limit_bytes: int) -> LimitedCommand:
    folder = parent / f"sentinelctl-{os.getpid()}"
    folder.mkdir(exist_ok=True)
    try:
        (folder / name).write_text(str(limit_bytes))
    except OSError:
        folder.rmdir()
        raise
    procs = str(folder / "cgroup.procs")
    return LimitedCommand(("/bin/sh", "-c", _JOIN, procs), folder)
