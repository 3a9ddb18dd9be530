# SPDX-License-Identifier: Apache-2.0
"""Limit the memory of a command with a memory cgroup of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sentineld.base.errors import SentinelError
from sentineld.host.memory_group import UnavailableError, group_of

PROBE_S = 10.0
_JOIN = 'echo $$ > "$0" && exec "$@"'


@dataclass(frozen=True)
class LimitedCommand:
    """How to start a command under a memory limit."""

    prefix: tuple[str, ...]
    """The program and its arguments to put in front of the command. The command then runs with
    the process id of this program."""

    folder: Path | None = None
    """The cgroup, if sentinelctl created it. None: systemd created it, and also removes it."""

    def close(self) -> None:
        """Remove the cgroup. It stays if it still has processes."""
        if self.folder is not None:
            with contextlib.suppress(OSError):
                self.folder.rmdir()


def limited_command(limit_bytes: int, proc: Path = Path("/proc")) -> LimitedCommand:
    """Prepare a memory limit in the first way that works: systemd, cgroup v2, cgroup v1.

    If no way works, raises SentinelError, which says for each way why it failed.
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
    """Prepare a limit with a transient scope of systemd. This way is tried first, because a running
    systemd owns the hierarchy of cgroups."""
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


def v2_parent(proc: Path) -> Path:
    """A cgroup (v2) whose children have a memory controller: this process's cgroup or its parent.

    Raises UnavailableError or OSError.
    """
    _, own = group_of(proc, "self", "cgroup2", "")
    # Except for the root group, a group that has processes cannot give controllers to its children
    # (cgroup-v2.rst, "No Internal Process Constraint"). Therefore the parent is tried, too.
    for parent in (own, own.parent):
        control = parent / "cgroup.subtree_control"
        if control.exists() and "memory" in control.read_text().split():
            return parent
    raise UnavailableError(f"{own} and its parent have no memory controller for their children")


def v1_parent(proc: Path) -> Path:
    """The cgroup (v1) of this process. Raises UnavailableError or OSError."""
    return group_of(proc, "self", "cgroup", "memory")[1]


def joining(folder: Path) -> tuple[str, ...]:
    """A prefix that makes a command run in the cgroup `folder`. The command keeps the process id of
    the prefix."""
    return ("/bin/sh", "-c", _JOIN, str(folder / "cgroup.procs"))


def _by_v2(limit_bytes: int, proc: Path) -> LimitedCommand:
    return _made(v2_parent(proc), "memory.max", limit_bytes)


def _by_v1(limit_bytes: int, proc: Path) -> LimitedCommand:
    return _made(v1_parent(proc), "memory.limit_in_bytes", limit_bytes)


_WAYS: dict[str, Callable[[int, Path], LimitedCommand]] = {
    "systemd": _by_systemd,
    "cgroup v2": _by_v2,
    "cgroup v1": _by_v1,
}


def _made(parent: Path, name: str, limit_bytes: int) -> LimitedCommand:
    folder = parent / f"sentinelctl-{os.getpid()}"
    folder.mkdir(exist_ok=True)
    try:
        (folder / name).write_text(str(limit_bytes))
    except OSError:
        folder.rmdir()
        raise
    return LimitedCommand(joining(folder), folder)
