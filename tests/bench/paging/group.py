# SPDX-License-Identifier: Apache-2.0
"""A memory cgroup (v2 or v1) for one training: its limit and its largest usage."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from sentineld.host.memory_group import UnavailableError
from sentineld.host.memory_limit import joining, v1_parent, v2_parent

_V1 = (v1_parent, "memory.limit_in_bytes", "memory.max_usage_in_bytes", "-1")
_V2 = (v2_parent, "memory.max", "memory.peak", "max")
RECLAIM_TRIES, RECLAIM_PAUSE_S = 50, 0.1


def group_name(pid: int, name: str) -> str:
    """The name of a cgroup that a process creates. It contains the process id, so that the cgroups
    of concurrent benchmarks have different names."""
    return f"sentineld-{pid}-{name}"


def groups_of(pid: int) -> list[Path]:
    """The cgroups that the process `pid` created and did not remove. The process must have run in
    the same cgroup as this process."""
    return [path for parent in _parents() for path in parent.glob(group_name(pid, "*"))]


def remove_group(folder: Path) -> bool:
    """Remove a cgroup as soon as its processes have ended. Return whether it has been removed."""
    for _ in range(RECLAIM_TRIES):
        try:
            folder.rmdir()
            return True
        except OSError:  # an ended process is removed from its cgroup with a delay
            time.sleep(RECLAIM_PAUSE_S)
    return False


def _parents() -> Iterator[Path]:
    for parent_in, *_ in (_V2, _V1):
        with contextlib.suppress(UnavailableError, OSError):
            yield parent_in(Path("/proc"))


class NoGroup:
    """Replaces MemoryGroup on a machine where no cgroup can be created. It limits nothing."""

    prefix: tuple[str, ...] = ()
    measures_peak = False

    def limit(self, limit_bytes: int | None) -> None:
        """Set no limit."""

    def reset_peak(self) -> None:
        """Measure nothing."""

    def peak_bytes(self) -> int:
        """Raises NotImplementedError, because measures_peak is false."""
        raise NotImplementedError

    def close(self) -> None:
        """Remove nothing."""


class MemoryGroup:
    """A new cgroup. Raises RuntimeError if none can be created."""

    def __init__(self, name: str) -> None:
        reasons = []
        for parent_in, limit, peak, unlimited in (_V2, _V1):
            try:
                self._folder = parent_in(Path("/proc")) / group_name(os.getpid(), name)
                self._folder.mkdir()
            except (UnavailableError, OSError) as error:
                reasons.append(f"{limit}: {error}")
                continue
            self._limit, self._unlimited = self._folder / limit, unlimited
            self._peak = _resettable(self._folder / peak)
            self.prefix = joining(self._folder)
            return
        raise RuntimeError(f"no memory cgroup can be created: {'; '.join(reasons)}")

    @property
    def measures_peak(self) -> bool:
        """Whether the kernel can reset the group's peak usage. With cgroup v2, this needs Linux
        6.12."""
        return self._peak is not None

    def limit(self, limit_bytes: int | None) -> None:
        """Set the limit; None: no limit. The kernel reclaims memory until the limit is met.

        Raises OSError.
        """
        text = self._unlimited if limit_bytes is None else str(limit_bytes)
        for attempt in range(RECLAIM_TRIES):
            try:
                self._limit.write_text(text)
                return
            except OSError:  # v1: EBUSY if the kernel cannot reclaim enough yet
                if attempt + 1 == RECLAIM_TRIES:
                    raise
                time.sleep(RECLAIM_PAUSE_S)

    def reset_peak(self) -> None:
        """Begin to measure the largest usage. Call only if measures_peak is true."""
        assert self._peak is not None
        # v2: the reset affects only reads through this file descriptor (cgroup-v2.rst).
        self._peak.seek(0)
        self._peak.write("0")
        self._peak.flush()

    def peak_bytes(self) -> int:
        """Largest usage since reset_peak()."""
        assert self._peak is not None
        self._peak.seek(0)
        return int(self._peak.read())

    def close(self) -> None:
        """Remove the group, which must have no processes."""
        if self._peak is not None:
            self._peak.close()
        remove_group(self._folder)


def _resettable(peak: Path) -> TextIO | None:
    try:
        return peak.open("r+")
    except OSError:
        return None
