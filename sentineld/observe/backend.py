# SPDX-License-Identifier: Apache-2.0
"""What every way of observing page accesses offers: capabilities, a probe, a watch.

A watch observes ranges of one process for a while and then tells what was
accessed: the window. Only the kernel module can do more: its epochs begin at
the training's own boundaries (see sentineld.session.intake.sampling). Training steps repeat,
so a window of at least one whole step sees what every step does.
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
        ("node", "u1"),  # where it lay when accessed; NO_NODE: the backend can't tell
        ("heat", "<f4"),  # 0..1: share of the looks at it that found it accessed
    ]
)
"""Memory that was accessed in a window; rising, disjoint. A backend that does not count says
heat 1."""

NO_NODE = 255

Areas = npt.NDArray[np.void]
Ranges = Sequence[tuple[int, int]]
"""(start, bytes), page-aligned."""


class Resolution(StrEnum):
    """The smallest memory that a backend can tell from its neighbours."""

    PAGE = "page"
    REGION = "region"  # grows and shrinks with what is seen; a cold page in a hot region hides
    TENSOR = "tensor"


@dataclass(frozen=True)
class Capabilities:
    """What a backend claims; tests/vm/test_backends.py holds each to just this."""

    reads: bool  # memory that is only read is seen
    writes: bool  # memory that is written is seen
    tells_writes: bool  # and is told from memory that is only read
    births: bool  # first touches are marked
    nodes: bool  # each access carries the node that served it
    frequency: bool  # heat grows with how often memory is accessed
    exact: bool  # all that was accessed is told, and nothing else
    epochs: bool  # what each stretch accesses, not only each step
    resolution: Resolution
    needs: str

    def summary(self) -> str:
        """A few words for people."""
        seen = {
            (True, True): "reads and writes",
            (False, True): "writes only",
        }[self.reads, self.writes]
        if self.reads and not self.tells_writes:
            seen = "accesses, reads not told from writes"
        more = [
            f"by {self.resolution}",
            "each stretch" if self.epochs else "each step",
            *(["with frequency"] if self.frequency else []),
            *(["with nodes"] if self.nodes else []),
        ]
        return ", ".join([seen, *more])


class Watch(Protocol):
    """A backend at work on one process. Every call raises ProcessLookupError once it is gone."""

    def begin(self, ranges: Ranges) -> None:
        """Begin a window over these ranges."""

    def poll(self) -> None:
        """To be called now and then during a window, by backends that look again and again."""

    def end(self) -> Areas:
        """End the window: what was accessed in it, AREA_DTYPE."""

    def close(self) -> None:
        """Let go of the process; twice is no error."""


@dataclass(frozen=True)
class Target:
    """A process to watch: what a backend may need to open it."""

    pid: int
    log_records: int = 1 << 20  # the module's log
    writes: WriteFds | None = None


@dataclass(frozen=True)
class Backend:
    """One way of observing. probe: why it can't work on this machine (an error with the way
    out), or None; it tries the feature, never a version. open: raises SentinelError."""

    name: str
    capabilities: Capabilities
    probe: Callable[[], SentinelError | None]
    open: Callable[[Target], Watch]


def merge_pages(
    pages: npt.NDArray[np.uint64],
    flags: npt.NDArray[np.uint8],
    nodes: npt.NDArray[np.uint8] | None = None,
    page_bytes: int = PAGE_BYTES,
) -> Areas:
    """Areas of heat 1 from distinct page numbers, rising; neighbours alike become one."""
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
