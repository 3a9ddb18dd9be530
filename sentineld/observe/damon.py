# SPDX-License-Identifier: Apache-2.0
"""DAMON as a backend: how often regions are accessed, from outside and without faults.

A kernel thread samples one page of each region for its accessed bit and splits
and merges regions by what it sees. This asks it, by its sysfs files, to watch
fixed ranges of one process, and takes snapshots of the regions while a window
is open. There is one user of these files at a time: what another program has
set up is left alone.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sentineld.base.errors import SentinelError
from sentineld.host.sysfs import read_text
from sentineld.model.records import PAGE_BYTES
from sentineld.observe.backend import (
    AREA_DTYPE,
    NO_NODE,
    Areas,
    Backend,
    Capabilities,
    Ranges,
    Resolution,
    Target,
)

KDAMONDS = Path("/sys/kernel/mm/damon/admin/kdamonds")
SAMPLE_US = 5_000
AGGREGATION_US = 100_000
LOOKS = AGGREGATION_US // SAMPLE_US
"""Looks at a region between two snapshots: its nr_accesses at most."""
REGIONS_MIN, REGIONS_MAX = 100, 1000
SNAPSHOTS_MIN = 20
"""Regions need about as many aggregations to settle around what is hot."""

_EVERYTHING = str((1 << 64) - 1)
_OPERATIONS = "fvaddr"  # the ranges given, of one process; vaddr would choose its own
_in_use = threading.Lock()
"""Held by the one watch of this program."""


@dataclass(frozen=True)
class Snapshot:
    """Regions of one aggregation that were accessed: (start, end, accesses), rising."""

    regions: tuple[tuple[int, int, int], ...]


def parse_snapshot(tried_regions: Path) -> Snapshot:
    """A scheme's tried_regions folder. A region that vanishes while it is read is left out."""
    found = []
    for folder in tried_regions.glob("[0-9]*"):
        values = [read_text(folder / name) for name in ("start", "end", "nr_accesses")]
        if all(value is not None and value.isdigit() for value in values):
            found.append(tuple(int(value or 0) for value in values))
    return Snapshot(tuple((start, end, count) for start, end, count in sorted(found)))


def merge_snapshots(snapshots: list[Snapshot], ranges: Ranges) -> Areas:
    """Mean heat over all snapshots, cut to the ranges. What a step of a second touches once is
    found by one look in 200, so any heat counts."""
    bounds = [(start, start + size) for start, size in ranges]
    bounds += [(start, end) for one in snapshots for start, end, _ in one.regions]
    edges = np.unique(np.array(bounds, np.uint64))
    if len(edges) < 2 or not snapshots:
        return np.zeros(0, AREA_DTYPE)
    heat = np.zeros(len(edges) - 1)
    for one in snapshots:
        for start, end, count in one.regions:
            first, last = np.searchsorted(edges, np.array([start, end], np.uint64))
            heat[first:last] += min(count, LOOKS) / LOOKS
    heat /= len(snapshots)
    inside = np.zeros(len(heat), np.bool_)
    for start, size in ranges:
        first, last = np.searchsorted(edges, np.array([start, start + size], np.uint64))
        inside[first:last] = True
    kept = np.flatnonzero(inside & (heat > 0))
    areas = np.zeros(len(kept), AREA_DTYPE)
    areas["start"] = edges[kept]
    areas["bytes"] = edges[kept + 1] - edges[kept]
    areas["node"], areas["heat"] = NO_NODE, heat[kept]
    return areas


class DamonWatch:
    """One kdamond, running while a window is open."""

    def __init__(self, target: Target, kdamonds: Path = KDAMONDS) -> None:
        """Set a kdamond up. Raises SentinelError if another program's is there."""
        self._pid = target.pid
        self._kdamonds = kdamonds
        self._ranges: Ranges = ()
        self._snapshots: list[Snapshot] = []
        self._broken = False
        if not _in_use.acquire(blocking=False):
            raise SentinelError("failed", "DAMON watches another session now", "wait for its plan")
        self._open = True
        problem = usable(kdamonds, target.pid)
        if problem is not None:
            self._release()
            raise problem
        self._remove()
        try:
            self._write("nr_kdamonds", 1)
            self._write("0/contexts/nr_contexts", 1)
            self._context("operations", _OPERATIONS)
        except OSError as error:
            self.close()
            raise SentinelError(
                "failed",
                f"DAMON does not take {_OPERATIONS}: {error.strerror}",
                "use a kernel with CONFIG_DAMON_VADDR=y",
            ) from None

    def begin(self, ranges: Ranges) -> None:
        """Start sampling the ranges. Raises SentinelError if DAMON does not take them."""
        self._ranges, self._snapshots, self._broken = sorted(ranges), [], False
        try:
            self._stop()
            self._set_up()
            self._write("0/state", "on")
        except OSError as error:
            self._check_process()
            raise SentinelError(
                "failed",
                f"DAMON does not start: {error.strerror}",
                "end other programs that use DAMON",
            ) from None

    def poll(self) -> None:
        """Take a snapshot; waits for the end of an aggregation. Raises ProcessLookupError."""
        try:
            self._write("0/state", "update_schemes_tried_regions")
        except OSError:
            self._check_process()
            self._broken = True  # somebody else has stopped it: what was seen so far is all
            return
        tried = self._kdamonds / "0/contexts/0/schemes/0/tried_regions"
        self._snapshots.append(parse_snapshot(tried))

    def end(self) -> Areas:
        """What was accessed, once there are snapshots enough; blocks for up to some seconds."""
        while len(self._snapshots) < SNAPSHOTS_MIN and not self._broken:
            before_s = time.monotonic()
            self.poll()
            time.sleep(max(0.0, AGGREGATION_US / 1e6 - (time.monotonic() - before_s)))
        self._check_process()
        self._stop()
        return merge_snapshots(self._snapshots[len(self._snapshots) // 2 :], self._ranges)

    def close(self) -> None:
        """Stop the kdamond and give DAMON's files back."""
        if self._open:
            self._remove()
            self._release()

    def _release(self) -> None:
        self._open = False
        _in_use.release()

    def _set_up(self) -> None:
        for name, value in (
            ("intervals/sample_us", SAMPLE_US),
            ("intervals/aggr_us", AGGREGATION_US),
            ("intervals/update_us", 10 * AGGREGATION_US),
            ("nr_regions/min", REGIONS_MIN),
            ("nr_regions/max", REGIONS_MAX),
        ):
            self._context(f"monitoring_attrs/{name}", value)
        self._context("targets/nr_targets", 1)
        self._context("targets/0/pid_target", self._pid)
        self._context("targets/0/regions/nr_regions", len(self._ranges))
        for index, (start, size) in enumerate(self._ranges):
            self._context(f"targets/0/regions/{index}/start", start)
            self._context(f"targets/0/regions/{index}/end", start + size)
        # A scheme that does nothing: its "tried regions" are how a snapshot is read.
        self._context("schemes/nr_schemes", 1)
        self._context("schemes/0/action", "stat")
        for name, least, most in (("sz", 0, _EVERYTHING), ("nr_accesses", 1, LOOKS)):
            self._context(f"schemes/0/access_pattern/{name}/max", most)
            self._context(f"schemes/0/access_pattern/{name}/min", least)
        self._context("schemes/0/access_pattern/age/max", _EVERYTHING)

    def _check_process(self) -> None:
        """A kdamond stops by itself once its process is gone. Raises ProcessLookupError."""
        if not os.path.exists(f"/proc/{self._pid}"):
            raise ProcessLookupError(f"DAMON has lost process {self._pid}")

    def _runs(self) -> bool:
        return read_text(self._kdamonds / "0/state") == "on"

    def _stop(self) -> None:
        if self._runs():
            self._write("0/state", "off")

    def _remove(self) -> None:
        if read_text(self._kdamonds / "nr_kdamonds") in (None, "0"):
            return
        try:
            self._stop()
            self._write("nr_kdamonds", 0)
        except OSError:
            # It ended between the two, or another program took it: either way it is not ours.
            return

    def _context(self, name: str, value: object) -> None:
        self._write(f"0/contexts/0/{name}", value)

    def _write(self, name: str, value: object) -> None:
        # A sysfs file takes one write; text files of Python's would truncate and buffer.
        fd = os.open(self._kdamonds / name, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, str(value).encode())
        finally:
            os.close(fd)


def usable(kdamonds: Path = KDAMONDS, pid: int | None = None) -> SentinelError | None:
    """Why DAMON can't be used now, or None. pid: a kdamond left on this process is taken over."""
    count = read_text(kdamonds / "nr_kdamonds")
    if count is None:
        return SentinelError(
            "failed",
            "the kernel has no DAMON with sysfs files",
            "use a kernel with CONFIG_DAMON_SYSFS=y, such as Debian 13's",
        )
    if not os.access(kdamonds / "nr_kdamonds", os.W_OK):
        return SentinelError(
            "not-permitted",
            f"{kdamonds} can't be written",
            "be root; in a unit with ProtectKernelTunables= add ReadWritePaths= for it",
        )
    if count == "0" or (count == "1" and read_text(kdamonds / "0/state") == "off"):
        return None
    watched = read_text(kdamonds / "0/contexts/0/targets/0/pid_target")
    if count == "1" and pid is not None and watched == str(pid):
        return None
    return SentinelError(
        "failed",
        f"DAMON watches process {watched or '?'} for another program",
        "end that program's monitoring, such as by: damo stop",
    )


DAMON = Backend(
    name="damon",
    capabilities=Capabilities(
        reads=True,
        writes=True,
        tells_writes=False,
        births=False,
        nodes=False,
        frequency=True,
        exact=False,
        epochs=False,
        resolution=Resolution.REGION,
        needs=f"CONFIG_DAMON_VADDR and CONFIG_DAMON_SYSFS; regions of {PAGE_BYTES} bytes or more",
    ),
    probe=usable,
    open=DamonWatch,
)
