# SPDX-License-Identifier: Apache-2.0
"""The interface of the backends that observe page accesses: capabilities, probe and watch.

A watch observes address ranges of one process during a period, the window, and then reports
which memory was accessed. The kernel module also reports in which stretch of the step each page was
accessed, because its epochs begin at the boundaries of the step (see
sentineld.session.intake.sampling). Because training steps repeat, the accesses in a window of at
least one whole step represent those of every step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import numpy as np
import numpy.typing as npt

from sentineld.base.errors import SentinelError
from sentineld.model.records import PAGE_BYTES
from sentineld.observe.writefds import WriteFds

AREA_DTYPE = np.dtype(
    [
        ("start", "<u8"),  # address
        ("bytes", "<u8"),
        ("flags", "u1"),  # ACCESS_WRITE, ACCESS_BIRTH of sentineld.model.records
        ("node", "u1"),  # the pages' node at the access; NO_NODE: unknown
        ("heat", "<f4"),  # share of the area's samples that found an access, 0..1
    ]
)
"""Memory that was accessed in a window: ascending, disjoint areas. The heat is 1 if the backend
does not count accesses."""

NO_NODE = 255

Areas = npt.NDArray[np.void]
Ranges = Sequence[tuple[int, int]]
"""Address ranges (start, bytes), page-aligned."""


class Resolution(StrEnum):
    """The smallest unit of memory that a backend can observe separately."""

    PAGE = "page"
    REGION = "region"  # as in DAMON, which does not recognise a cold page in a hot region
    TENSOR = "tensor"


@dataclass(frozen=True)
class Capabilities:
    """The abilities of a backend. For each backend that observes pages or regions,
    tests/vm/test_backends.py checks all claims except `epochs` and `resolution`."""

    reads: bool  # sees memory that is only read
    writes: bool  # sees memory that is written
    distinguishes_writes: bool  # distinguishes written memory from memory that is only read
    births: bool  # first touches are marked
    nodes: bool  # reports the node that served each access
    frequency: bool  # heat grows with the number of accesses
    exact: bool  # reports all accesses of the kinds that it sees, and nothing else
    epochs: bool  # accesses are reported for each stretch, not only for each step
    resolution: Resolution

    def summary(self) -> str:
        """A short description, which `sentinelctl doctor` and `sentinelctl status` print."""
        seen = {
            (True, True): "reads and writes",
            (False, True): "writes only",
        }[self.reads, self.writes]
        if self.reads and not self.distinguishes_writes:
            seen = "accesses, without distinguishing reads from writes"
        more = [
            f"by {self.resolution}",
            "per stretch" if self.epochs else "per step",
            *(["with frequency"] if self.frequency else []),
            *(["with nodes"] if self.nodes else []),
        ]
        return ", ".join([seen, *more])


class Watch(Protocol):
    """A backend's watch of one process.

    After the process has exited, begin(), poll() and end() may raise ProcessLookupError.
    """

    def begin(self, ranges: Ranges) -> None:
        """Begin a window over these ranges."""

    def poll(self) -> None:
        """Take a sample, if the backend works by sampling. Call this regularly during a window."""

    def end(self) -> Areas:
        """End the window and return the memory accessed in it; AREA_DTYPE."""

    def close(self) -> None:
        """Stop watching the process; a second call does nothing."""


@dataclass(frozen=True)
class Target:
    """A process to watch, and the arguments that a backend may need for the watch."""

    pid: int
    log_records: int = 1 << 20  # capacity of the kernel module's log, a power of two
    writes: WriteFds | None = None  # the process's descriptors; for backends that see only writes
    # The process's user ID and its start time (field 22 of /proc/PID/stat). The kernel module
    # refuses a process with other values. None: the process's values when the watch is opened.
    uid: int | None = None
    start_ticks: int | None = None
    # Interval at which the kernel module arms accessed pages again; see PageSampler.attach().
    rearm_us: int = 0
    # Whether the process has a pager, which maps pages before their first access.
    paged: bool = False


@dataclass(frozen=True)
class Backend:
    """One way to observe page accesses."""

    name: str
    capabilities: Capabilities
    probe: Callable[[], SentinelError | None]
    """Checks whether the backend works on this machine, without relying on the kernel's version
    number. Returns None if it works, else an error with a hint."""
    open: Callable[[Target], Watch]
    """Starts to watch a process. Raises SentinelError."""


def merge_pages(
    pages: npt.NDArray[np.uint64],
    flags: npt.NDArray[np.uint8],
    nodes: npt.NDArray[np.uint8] | None = None,
    page_bytes: int = PAGE_BYTES,
) -> Areas:
    """Merge pages into areas of heat 1: adjacent pages with equal flags and node become one area.

    pages: distinct page numbers, ascending.
    flags, nodes: one entry per page; nodes None: NO_NODE for all pages.
    """
    if not len(pages):
        return np.zeros(0, AREA_DTYPE)
    if nodes is None:
        nodes = np.full(len(pages), NO_NODE, np.uint8)
    breaks = (np.diff(pages) != 1) | (np.diff(flags) != 0) | (np.diff(nodes) != 0)
    first = np.concatenate([[0], np.flatnonzero(breaks) + 1])
    counts = np.diff(np.append(first, len(pages)))
    areas = np.zeros(len(first), AREA_DTYPE)
    areas["start"] = pages[first] * np.uint64(page_bytes)
    areas["bytes"] = counts * page_bytes
    areas["flags"], areas["node"], areas["heat"] = flags[first], nodes[first], 1
    return areas
