# SPDX-License-Identifier: Apache-2.0
"""The result of a check, and the system under examination."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from sentineld.base.errors import SentinelError
from sentineld.config import Config
from sentineld.host.sysfs import read_text


class Status(StrEnum):
    """The outcome of a check."""

    OK = "ok"
    WARN = "warn"  # works, with limitations
    FAIL = "fail"  # does not work
    SKIP = "skip"  # unknown, or not needed here


class TierKind(StrEnum):
    """The kind of the tiers. The values other than NODES are keys of the config's [tiers] and of
    the daemon's status."""

    NODES = "nodes"
    EMULATED = "emulated"
    PAGED = "paged"
    SWAP = "swap"


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    check: str  # the name of the check
    status: Status
    cause: str  # a description of the finding
    fix: str = ""  # how to fix the problem, for WARN and FAIL
    code: str = "failed"  # error code for the exit status, if this check is the first to fail


@dataclass(frozen=True)
class System:
    """The machine to examine. Tests pass a folder with made-up files as `root`."""

    root: Path = Path("/")
    tiers: Mapping[str, object] = field(default_factory=dict)  # the config's [tiers]
    ebpf: str = Config.ebpf  # the config's setting `ebpf`: auto, off or required
    # The daemon's answer to the verb `status`, or an error that says why there is no answer.
    daemon: Mapping[str, Any] | SentinelError = field(
        default_factory=lambda: SentinelError(
            "daemon-unreachable", "the daemon was not asked", "ask it"
        )
    )

    def text(self, path: str) -> str | None:
        """The stripped text of a file below root, or None if it cannot be read."""
        return read_text(self.root / path)

    @property
    def tier_kind(self) -> TierKind:
        """The kind of the running daemon's tiers or, if no daemon runs, of the tiers that the
        config selects."""
        source = self.tiers if isinstance(self.daemon, SentinelError) else self.daemon
        return next((kind for kind in TierKind if source.get(kind)), TierKind.NODES)

    @property
    def release(self) -> str:
        """The release of the running kernel, "" if unknown."""
        return self.text("proc/sys/kernel/osrelease") or ""
