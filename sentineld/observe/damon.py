# SPDX-License-Identifier: Apache-2.0
"""The DAMON backend: access frequency of regions, without page faults in the process.

DAMON's kernel thread samples the accessed bit of one page per region. It splits
regions at random, and merges neighbours with similar access counts. This backend
configures DAMON through sysfs to watch fixed ranges of one process, and takes
snapshots of the regions during a window. Only one program at a time can use DAMON's
sysfs files. If another program uses them, this backend leaves the configuration
unchanged and reports an error.
"""

from __future__ import annotations

import contextlib
import functools
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
MODULES = Path("/sys/module")
EXCLUSIVE = ("damon_stat", "damon_reclaim", "damon_lru_sort")
"""Parts of the kernel that use DAMON. While one of them is enabled, the kernel refuses to start
DAMON for anyone else (damon_start() in mm/damon/core.c). DAMON_STAT is enabled by default in some
kernels since 6.17."""
SAMPLE_US = 5_000
AGGREGATION_US = 100_000
LOOKS = AGGREGATION_US // SAMPLE_US
"""Number of samples of a region in an aggregation: the largest possible nr_accesses."""
REGIONS_MIN, REGIONS_MAX = 100, 1000
SNAPSHOTS_MIN = 20
"""Regions need about this number of aggregations to converge on the hot memory."""

_EVERYTHING = str((1 << 64) - 1)
_OPERATIONS = "fvaddr"  # fixed ranges of one process; vaddr would choose the ranges itself
_in_use = threading.Lock()
"""Held by the open DamonWatch: the daemon can have only one DamonWatch at a time."""


@dataclass(frozen=True)
class Snapshot:
    """The regions that were accessed in one aggregation."""

    regions: tuple[tuple[int, int, int], ...]  # (start, end, nr_accesses), ascending


def parse_snapshot(tried_regions: Path) -> Snapshot:
    """Read a scheme's tried_regions folder. Skips regions that disappear during the read."""
    found = []
    for folder in tried_regions.glob("[0-9]*"):
        values = [read_text(folder / name) for name in ("start", "end", "nr_accesses")]
        if all(value is not None and value.isdigit() for value in values):
            found.append(tuple(int(value or 0) for value in values))
    return Snapshot(tuple((start, end, count) for start, end, count in sorted(found)))


def merge_snapshots(snapshots: list[Snapshot], ranges: Ranges) -> Areas:
    """Return areas, clipped to the ranges, with their mean heat over all snapshots.

    Areas with any heat above 0 are kept: if a step of 1 s touches memory once, only 1 of 200
    samples finds it accessed.
    """
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
    """One kdamond (a kernel thread of DAMON), which runs only during windows."""

    def __init__(self, target: Target, kdamonds: Path = KDAMONDS) -> None:
        """Set up a kdamond. Raises SentinelError if DAMON cannot be used, for example because
        another program or another session is using it."""
        self._pid = target.pid
        self._kdamonds = kdamonds
        self._ranges: Ranges = ()
        self._snapshots: list[Snapshot] = []
        self._broken = False
        if not _in_use.acquire(blocking=False):
            raise SentinelError(
                "failed",
                "DAMON is watching another session",
                "wait until that session has its plan",
            )
        self._open = True
        problem = usable(kdamonds, target.pid)
        if problem is not None:
            self._release()
            raise problem.fresh()
        self._remove()
        try:
            self._write("nr_kdamonds", 1)
            self._write("0/contexts/nr_contexts", 1)
            self._context("operations", _OPERATIONS)
        except OSError as error:
            self.close()
            raise SentinelError(
                "failed",
                f"DAMON does not support {_OPERATIONS}: {error.strerror}",
                "use a kernel with CONFIG_DAMON_VADDR=y",
            ) from None

    def begin(self, ranges: Ranges) -> None:
        """Start sampling the ranges. Raises SentinelError if DAMON does not start."""
        self._ranges, self._snapshots, self._broken = sorted(ranges), [], False
        try:
            self._stop()
            self._set_up()
            self._write("0/state", "on")
        except OSError as error:
            self._check_process()
            raise SentinelError(
                "failed",
                f"DAMON did not start: {error.strerror}",
                "end other programs that use DAMON",
            ) from None

    def poll(self) -> None:
        """Take a snapshot; blocks until an aggregation ends.

        Raises ProcessLookupError if the process has exited.
        """
        try:
            self._write("0/state", "update_schemes_tried_regions")
        except OSError:
            self._check_process()
            self._broken = True  # another program stopped the kdamond
            return
        tried = self._kdamonds / "0/contexts/0/schemes/0/tried_regions"
        self._snapshots.append(parse_snapshot(tried))

    def end(self) -> Areas:
        """Return the accessed areas. Waits for SNAPSHOTS_MIN snapshots, which takes seconds. Only
        the second half of the snapshots is used, because the regions have to converge first."""
        while len(self._snapshots) < SNAPSHOTS_MIN and not self._broken:
            before_s = time.monotonic()
            self.poll()
            time.sleep(max(0.0, AGGREGATION_US / 1e6 - (time.monotonic() - before_s)))
        self._check_process()
        self._stop()
        return merge_snapshots(self._snapshots[len(self._snapshots) // 2 :], self._ranges)

    def close(self) -> None:
        """Remove the kdamond, so that other programs can use DAMON."""
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
        # The scheme has no effect, but its tried_regions folder is the only way to read a snapshot.
        self._context("schemes/nr_schemes", 1)
        self._context("schemes/0/action", "stat")
        for name, least, most in (("sz", 0, _EVERYTHING), ("nr_accesses", 1, LOOKS)):
            self._context(f"schemes/0/access_pattern/{name}/max", most)
            self._context(f"schemes/0/access_pattern/{name}/min", least)
        self._context("schemes/0/access_pattern/age/max", _EVERYTHING)

    def _check_process(self) -> None:
        """Raise ProcessLookupError if the process has exited. The exit also stops the kdamond."""
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
            # The kdamond has ended, or another program has taken it over.
            return

    def _context(self, name: str, value: object) -> None:
        self._write(f"0/contexts/0/{name}", value)

    def _write(self, name: str, value: object) -> None:
        _write(self._kdamonds / name, value)


def usable(
    kdamonds: Path = KDAMONDS, pid: int | None = None, modules: Path = MODULES
) -> SentinelError | None:
    """The reason why DAMON can't be used now, as an error with a hint; None if it can be used.

    pid: the process to watch. A kdamond that already watches this process was left behind by a
        daemon that has died, so this daemon can take it over.
    """
    count = read_text(kdamonds / "nr_kdamonds")
    if count is None:
        return SentinelError(
            "failed",
            "the kernel has no DAMON sysfs interface",
            "use a kernel with CONFIG_DAMON_SYSFS=y, such as Debian 13's",
        )
    if not os.access(kdamonds / "nr_kdamonds", os.W_OK):
        return SentinelError(
            "not-permitted",
            f"{kdamonds} is not writable",
            "run as root; in a unit with ProtectKernelTunables=, add ReadWritePaths= for this file",
        )
    for name in EXCLUSIVE:
        enabled = modules / name / "parameters/enabled"
        if read_text(enabled) == "Y":
            return SentinelError(
                "failed",
                f"the kernel's {name.upper()} uses DAMON",
                f"disable it: echo N > {enabled}",
            )
    if count == "0" or (count == "1" and read_text(kdamonds / "0/state") == "off"):
        return _lacking(kdamonds)
    watched = read_text(kdamonds / "0/contexts/0/targets/0/pid_target")
    if count == "1" and pid is not None and watched == str(pid):
        return None
    return SentinelError(
        "failed",
        f"another program is using DAMON on process {watched or '?'}",
        "stop that program's monitoring, for example with: damo stop",
    )


@functools.cache
def _lacking(kdamonds: Path) -> SentinelError | None:
    """The error if the kernel's DAMON cannot watch a process, else None.

    The list of the operations that DAMON supports exists only in the folder of a context, so a
    context is created if there is none.
    """
    offered = kdamonds / "0/contexts/0/avail_operations"
    created = not offered.exists()
    try:
        if created:
            _write(kdamonds / "nr_kdamonds", 1)
            _write(kdamonds / "0/contexts/nr_contexts", 1)
        names = offered.read_text().split()
    except OSError:
        return None  # kernels before 5.19 do not have avail_operations
    finally:
        if created:
            with contextlib.suppress(OSError):
                _write(kdamonds / "nr_kdamonds", 0)
    if _OPERATIONS in names:
        return None
    return SentinelError(
        "failed",
        f"the kernel's DAMON does not support {_OPERATIONS}",
        "use a kernel with CONFIG_DAMON_VADDR=y",
    )


def _write(file: Path, value: object) -> None:
    """Write a value with a single write(), as sysfs requires. Python's file objects would truncate
    the file and buffer the value."""
    fd = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, str(value).encode())
    finally:
        os.close(fd)


DAMON = Backend(
    name="damon",
    capabilities=Capabilities(
        reads=True,
        writes=True,
        distinguishes_writes=False,
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
