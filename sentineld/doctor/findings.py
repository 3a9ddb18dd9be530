# SPDX-License-Identifier: Apache-2.0
"""What a check finds, and the machine's files it looks at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from sentineld.config import Config
from sentineld.host.sysfs import read_text


class Status(StrEnum):
    """ok: works; warn: works less well; fail: does not work; skip: can't be told or not needed."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"


@dataclass(frozen=True)
class Finding:
    """One check's result: what was found, and for warn and fail how to put it right.

    code: the error code of errors.EXIT_STATUS that a failing check ends doctor with.
    """

    check: str
    status: Status
    cause: str
    fix: str = ""
    code: str = "failed"


@dataclass(frozen=True)
class System:
    """A machine to look at: its root folder, the daemon's socket and the config's [tiers]."""

    root: Path = Path("/")
    socket: Path = Path(Config.control_socket)
    tiers: Mapping[str, object] = field(default_factory=dict)

    def text(self, path: str) -> str | None:
        """A file's stripped text, or None."""
        return read_text(self.root / path)

    @property
    def release(self) -> str:
        """The running kernel's release, "" if unknown."""
        return self.text("proc/sys/kernel/osrelease") or ""
