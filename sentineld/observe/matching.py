# SPDX-License-Identifier: Apache-2.0
"""Finds the rule of the configuration that matches a process whose shim has connected.

A rule has conditions on a process's user, cgroup, systemd unit and command line (AttachRule). The
user ID is the one that the kernel reports for the process's connection. The cgroup is also
reported by the kernel, but users can choose a part of its path: a user may create cgroups, with any
names, below a cgroup that systemd has delegated to this user. The process itself determines its
command line, and can change it at any time.
"""

from __future__ import annotations

import errno
import pwd
import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path

from sentineld.host.cgroup_paths import cgroup_paths
from sentineld.model.attach_rule import AttachRule

COMMAND_BYTES_MAX = 4096
"""Only this many bytes of a command line are compared."""
_UNIT_KINDS = (
    "automount|device|mount|path|scope|service|slice|socket|swap|target|timer"  # systemd.unit(5)
)
_UNIT_NAME = re.compile(rf"[A-Za-z0-9:_.\\@-]+\.({_UNIT_KINDS})")


class Candidate:
    """Facts about a process, with which rules are compared. Each fact is read only when a rule
    needs it, because a process can delay the reading of its command line: the memory that contains
    it may be mapped from a file system that the process itself serves."""

    def __init__(self, pid: int, uid: int, proc: Path = Path("/proc")) -> None:
        """uid: the process's user ID, as the kernel reports it for the process's connection."""
        self.pid = pid
        self.uid = uid
        self._folder = proc / str(pid)

    @cached_property
    def cgroups(self) -> dict[str, str]:
        """The paths of the process's cgroups; see cgroup_paths(). Raises OSError."""
        return cgroup_paths(self._read("cgroup"))

    @cached_property
    def units(self) -> tuple[str, ...]:
        """The slices that contain the process's systemd unit, and then this unit. Only units of the
        system's manager are included, not those of a user's own manager. Raises OSError."""
        # If both versions of cgroups are mounted, systemd uses a hierarchy of v1, and that of v2
        # ("") may be unused.
        path = self.cgroups.get("name=systemd") or self.cgroups.get("", "")
        found: list[str] = []
        for folder in path.strip("/").split("/"):
            name = folder.removeprefix("_")  # systemd prefixes reserved names
            if _UNIT_NAME.fullmatch(name) is None:
                break
            found.append(name)
            if not name.endswith(".slice"):
                break  # the unit itself may have created the cgroups below this one
        return tuple(found)

    @cached_property
    def command(self) -> str:
        """The start of the command line (see COMMAND_BYTES_MAX), with its arguments joined by
        spaces. Raises OSError."""
        return self._read("cmdline", COMMAND_BYTES_MAX).rstrip("\0").replace("\0", " ")

    def _read(self, name: str, bytes_max: int = -1) -> str:
        try:
            with (self._folder / name).open("rb") as file:
                return file.read(bytes_max).decode(errors="surrogateescape").rstrip("\n")
        except FileNotFoundError as error:
            raise ProcessLookupError(errno.ESRCH, f"process {self.pid} has exited") from error


def matching_rule(rules: Iterable[AttachRule], candidate: Candidate) -> AttachRule | None:
    """The first rule that matches the process; None if none does.

    Raises OSError; ProcessLookupError if the process has exited. The caller must check afterwards
    that the process has not exited. If it has, the facts may be those of another process with the
    same ID.
    """
    return next((rule for rule in rules if _matches(rule, candidate)), None)


def _matches(rule: AttachRule, candidate: Candidate) -> bool:
    return (
        (not rule.user or _is_user(rule.user, candidate.uid))
        and (not rule.cgroup or any(_inside(rule.cgroup, p) for p in _paths(candidate)))
        and (not rule.unit or any(_is_unit(rule.unit, unit) for unit in candidate.units))
        and (not rule.command or fnmatchcase(candidate.command, rule.command))
    )


def _is_user(user: str, uid: int) -> bool:
    if user.isdecimal():
        return int(user) == uid
    try:
        return pwd.getpwnam(user).pw_uid == uid
    except KeyError:
        return False


def _paths(candidate: Candidate) -> set[str]:
    hierarchies = ("", "name=systemd", "memory")
    return {path for name in hierarchies if (path := candidate.cgroups.get(name, "/")) != "/"}


def _inside(pattern: str, path: str) -> bool:
    """Whether the pattern matches a cgroup or one of its ancestors. A `*` does not match a /."""
    wanted, given = pattern.strip("/").split("/"), path.strip("/").split("/")
    return len(wanted) <= len(given) and all(map(fnmatchcase, given, wanted))


def _is_unit(pattern: str, unit: str) -> bool:
    """Whether the pattern matches a unit's name. As for systemctl, a name without a suffix is the
    name of a service."""
    return fnmatchcase(unit, pattern) or fnmatchcase(unit, f"{pattern}.service")
