# SPDX-License-Identifier: Apache-2.0
"""A cgroup, v1 or v2: its folder, and the processes in it and in its descendants."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path

from sentineld.base.errors import SentinelError
from sentineld.base.text import printable
from sentineld.host.mounts import Mount, mounts_of, read_mountinfo

LEVELS_MAX = 64
"""Number of levels of descendants whose processes are listed. A user can nest any number of cgroups
below a cgroup that is delegated to them. os.fwalk() keeps one descriptor open per level, and in
Python 3.11 also calls itself once per level."""
_GONE = (errno.ENOENT, errno.ENODEV)


class Cgroup:
    """An open cgroup. A cgroup that is created later at the same path is another cgroup."""

    def __init__(self, path: str, mountinfo: Path = Path("/proc/self/mountinfo")) -> None:
        """path: see cgroup_folder(). Raises SentinelError if there is no such cgroup, or if it is
        the root of a hierarchy."""
        self.folder = cgroup_folder(path, mounts_of(read_mountinfo(mountinfo)))
        self.shown = printable(str(self.folder))
        """The folder for messages; printable. Users choose the names of cgroups below a cgroup that
        is delegated to them."""
        try:
            self._fd = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise _no_such_cgroup(path) from None
        except OSError as error:
            raise SentinelError(
                "failed",
                f"cgroup {self.shown} cannot be opened: {error.strerror}",
                "give the folder of a cgroup",
            ) from None
        stat = os.fstat(self._fd)
        self.identity = f"{stat.st_dev}-{stat.st_ino}"
        """Differs from the identity of every other cgroup since the boot."""

    def pids(self, most: int) -> list[int]:
        """The pids of at most `most` processes in the cgroup and in its descendants.

        Processes outside the daemon's PID namespace are left out. Processes in descendants more
        than LEVELS_MAX levels below the cgroup are left out, too. Empty if the cgroup was removed.
        Raises SentinelError.
        """
        found: dict[int, None] = {}
        for folder, inner, _, fd in os.fwalk(".", dir_fd=self._fd):
            if folder.count("/") == LEVELS_MAX:
                # Raise no error: otherwise, a user who nests too many cgroups could end a session
                # that also manages other users' processes.
                inner.clear()  # fwalk() then does not enter these folders
            try:
                with os.fdopen(_open_list(fd)) as file:
                    found.update((pid, None) for pid in map(int, file) if pid)
            except OSError as error:
                if error.errno in _GONE:
                    continue
                # The list of a threaded cgroup (v2) cannot be read. Its processes are in the list
                # of its threaded domain.
                if error.errno == errno.EOPNOTSUPP and folder != ".":
                    continue
                raise SentinelError(
                    "failed",
                    f"the processes of cgroup {self.shown} cannot be read: {error.strerror}",
                    "give a cgroup whose cgroup.procs the daemon can read",
                ) from None
            if len(found) >= most:
                break
        return list(found)[:most]

    def removed(self) -> bool:
        """Whether the cgroup was removed."""
        try:
            os.close(_open_list(self._fd))
        except OSError as error:
            return error.errno in _GONE
        return False

    def close(self) -> None:
        """Close the folder."""
        os.close(self._fd)


def _open_list(folder_fd: int) -> int:
    return os.open("cgroup.procs", os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder_fd)


def cgroup_folder(path: str, mounts: Iterable[Mount]) -> Path:
    """The folder of a cgroup.

    path: the folder, or the cgroup's path in its hierarchy, as /proc/PID/cgroup and systemd show
        it. If several hierarchies have this path, v2 is preferred, then systemd's hierarchy (v1),
        then the hierarchy of the memory controller (v1).

    Raises SentinelError.
    """
    hierarchies = sorted((one for one in mounts if one.kind in ("cgroup", "cgroup2")), key=_rank)
    if not path.startswith("/"):
        raise SentinelError(
            "usage", f"{path!r} is not the path of a cgroup", "give a path that begins with /"
        )
    given = Path(os.path.realpath(path))
    for mount in hierarchies:
        if given.is_relative_to(mount.point):
            return _below(given, mount.point)
    inner = os.path.normpath(path).lstrip("/")
    for mount in hierarchies:
        folder = mount.point / inner
        if folder.is_dir():
            return _below(folder, mount.point)
    raise _no_such_cgroup(path)


def _no_such_cgroup(path: str) -> SentinelError:
    return SentinelError("no-such-process", f"there is no cgroup {path}", "see systemd-cgls")


def _rank(mount: Mount) -> int:
    if mount.kind == "cgroup2":
        return 0
    preferred = ("name=systemd", "memory")
    return next((1 + at for at, name in enumerate(preferred) if name in mount.options), 3)


def _below(folder: Path, root: Path) -> Path:
    if folder == root:
        raise SentinelError(
            "not-permitted",
            f"{folder} is the root of a hierarchy of cgroups",
            "give a cgroup below it",
        )
    return folder
