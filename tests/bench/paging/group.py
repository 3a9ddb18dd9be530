# SPDX-License-Identifier: Apache-2.0
"""A memory cgroup (v2 or v1) for one training: its limit and its largest usage."""

from __future__ import annotations

import time
from pathlib import Path

from sentineld.host.memory_group import UnavailableError
from sentineld.host.memory_limit import joining, v1_parent, v2_parent

_V1 = (v1_parent, "memory.limit_in_bytes", "memory.max_usage_in_bytes", "-1")
_V2 = (v2_parent, "memory.max", "memory.peak", "max")
RECLAIM_TRIES, RECLAIM_PAUSE_S = 50, 0.1


class MemoryGroup:
    """A new cgroup. Raises RuntimeError if none can be created."""

    def __init__(self, name: str) -> None:
        reasons = []
        for parent_in, limit, peak, unlimited in (_V2, _V1):
            try:
                self._folder = parent_in(Path("/proc")) / name
                self._folder.mkdir()
            except (UnavailableError, OSError) as error:
                reasons.append(f"{limit}: {error}")
                continue
            self._limit, self._unlimited = self._folder / limit, unlimited
            self._peak = (self._folder / peak).open("r+")
            self.prefix = joining(self._folder)
            return
        raise RuntimeError(f"no memory cgroup can be created: {'; '.join(reasons)}")

    def limit(self, limit_bytes: int | None) -> None:
        """Set the limit; None: no limit. A lower limit reclaims memory until the usage is below it.

        Raises OSError.
        """
        text = self._unlimited if limit_bytes is None else str(limit_bytes)
        for attempt in range(RECLAIM_TRIES):
            try:
                self._limit.write_text(text)
                return
            except OSError:  # v1: EBUSY after the kernel gave up reclaiming for now
                if attempt + 1 == RECLAIM_TRIES:
                    raise
                time.sleep(RECLAIM_PAUSE_S)

    def reset_peak(self) -> None:
        """Begin to measure the largest usage. Raises OSError (v2: before Linux 6.12)."""
        # v2: the reset holds for the file description that wrote (cgroup-v2.rst, memory.peak).
        self._peak.seek(0)
        self._peak.write("0")
        self._peak.flush()

    def peak_bytes(self) -> int:
        """Largest usage since reset_peak()."""
        self._peak.seek(0)
        return int(self._peak.read())

    def close(self) -> None:
        """Remove the group, which must have no processes."""
        self._peak.close()
        for _ in range(RECLAIM_TRIES):
            try:
                self._folder.rmdir()
                return
            except OSError:  # an ended process leaves its group a little later
                time.sleep(RECLAIM_PAUSE_S)
