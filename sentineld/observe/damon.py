# SPDX-License-Identifier: Apache-2.0
"""The DAMON backend: access frequency of regions, without page faults in the process.

DAMON's kernel thread samples the accessed bit of one page per region. It splits regions at random,
and merges neighbours with similar access counts. This backend has DAMON watch fixed ranges of one
process (kdamond.py), and takes snapshots of the regions during a window (backend.py).
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sentineld.base.errors import SentinelError
from sentineld.host.sysfs import read_text
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
from sentineld.observe.kdamond import ADDRESSES, KDAMONDS, Kdamond, Sampling, usable

SAMPLING = Sampling(sample_us=5_000, aggregation_us=100_000, regions_min=100, regions_max=1000)
SNAPSHOTS_MIN = 20
"""Regions need about this number of aggregations to converge on the hot memory."""
SNAPSHOTS_MAX = 4 * SNAPSHOTS_MIN
"""Maximum number of snapshots that a window keeps. A snapshot of 1000 regions takes about 150 KB.
A full list is thinned to half of its snapshots. The second half of the list, which end() uses, then
still has SNAPSHOTS_MIN snapshots. SNAPSHOTS_MAX is even, so that the kept snapshots stay evenly
spaced."""

WAIT_S = 5.0
"""Time limit for waiting while a session of policy `temperature` uses DAMON. A window of such a
session takes about a second."""


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

    Areas with any heat above 0 are kept: if a step of 1 s touches memory once, only 1 of the
    step's 200 samples (one every 5 ms, see SAMPLING) finds it accessed.
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
            heat[first:last] += min(count, SAMPLING.looks) / SAMPLING.looks
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
    """A kdamond (a kernel thread of DAMON) that runs only during windows."""

    def __init__(self, target: Target, kdamonds: Path = KDAMONDS) -> None:
        """Set up a kdamond. Raises SentinelError; see Kdamond."""
        self._pid = target.pid
        self._ranges: Ranges = ()
        self._snapshots: list[Snapshot] = []
        self._polls = 0
        self._stride = 1
        """n if `_snapshots` has every n-th snapshot of the window, beginning with the first."""
        self._broken = False
        self._kdamond = Kdamond(ADDRESSES, target.pid, kdamonds, WAIT_S)

    def begin(self, ranges: Ranges) -> None:
        """Start sampling the ranges. Raises SentinelError if DAMON does not start."""
        self._ranges, self._snapshots, self._broken = sorted(ranges), [], False
        self._polls, self._stride = 0, 1
        try:
            self._kdamond.start(self._ranges, SAMPLING)
        except OSError as error:
            self._check_process()
            raise SentinelError(
                "failed",
                f"DAMON did not start: {error.strerror}",
                "end other programs that use DAMON",
            ) from None

    def poll(self) -> None:
        """Take a snapshot; blocks until an aggregation ends. Of a long window, only every n-th
        snapshot is kept.

        Raises ProcessLookupError if the process has exited.
        """
        try:
            self._kdamond.take_snapshot()
        except OSError:
            self._check_process()
            self._broken = True  # another program stopped the kdamond
            return
        if self._polls % self._stride == 0:
            self._snapshots.append(parse_snapshot(self._kdamond.tried_regions))
            if len(self._snapshots) == SNAPSHOTS_MAX:
                del self._snapshots[1::2]
                self._stride *= 2
        self._polls += 1

    def end(self) -> Areas:
        """Return the accessed areas. Waits for SNAPSHOTS_MIN snapshots, which takes seconds. Only
        the second half of the snapshots is used, because the regions have to converge first."""
        while len(self._snapshots) < SNAPSHOTS_MIN and not self._broken:
            before_s = time.monotonic()
            self.poll()
            time.sleep(max(0.0, SAMPLING.aggregation_us / 1e6 - (time.monotonic() - before_s)))
        self._check_process()
        self._kdamond.stop()
        return merge_snapshots(self._snapshots[len(self._snapshots) // 2 :], self._ranges)

    def close(self) -> None:
        """Remove the kdamond, so that other programs can use DAMON."""
        self._kdamond.close()

    def _check_process(self) -> None:
        """Raise ProcessLookupError if the process has exited. The exit also stops the kdamond."""
        if not os.path.exists(f"/proc/{self._pid}"):
            raise ProcessLookupError(f"DAMON has lost process {self._pid}")


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
    ),
    probe=usable,
    open=DamonWatch,
)
