# SPDX-License-Identifier: Apache-2.0
"""The kernel module as a backend: every page, reads and writes, the node, epochs."""

from __future__ import annotations

import numpy as np

from sentineld.base.errors import SentinelError
from sentineld.model.records import ACCESS_BIRTH, ACCESS_WRITE, NO_ACCESS
from sentineld.observe.backend import (
    Areas,
    Backend,
    Capabilities,
    Ranges,
    Resolution,
    Target,
    merge_pages,
)
from sentineld.observe.kmodule import PageSampler


class ModuleWatch:
    """A PageSampler and the ranges that it watches; closing it disarms everything."""

    def __init__(self, target: Target) -> None:
        """Attach. Raises SentinelError."""
        self.sampler = PageSampler()
        try:
            self.sampler.attach(target.pid, target.log_records)
        except BaseException:
            self.sampler.close()
            raise
        self._added: dict[int, int] = {}

    def begin(self, ranges: Ranges) -> None:
        """Arm the ranges and begin an epoch from here."""
        self.arm(ranges)
        self.sampler.begin_epoch()
        self.sampler.drain()

    def arm(self, ranges: Ranges) -> None:
        """Arm the ranges from the next epoch on, for whoever begins epochs."""
        for start, size in ranges:
            if self._added.get(start, 0) < size:
                if start in self._added:
                    self.sampler.remove_range(start, self._added[start])
                self.sampler.add_range(start, size)
                self._added[start] = size
            self.sampler.arm(start, size)

    def poll(self) -> None:
        """The log is drained by whoever wants epochs; a window's is long enough."""

    def end(self) -> Areas:
        """What was seen accessed; pages are ordinary again. First touches come with the epoch's
        end, and pages that something else un-armed are left out as unknown."""
        self.sampler.begin_epoch()
        samples = self.sampler.drain()
        self.disarm()
        samples = samples[samples["flags"] & NO_ACCESS == 0]
        pages, first, which = np.unique(samples["page"], return_index=True, return_inverse=True)
        flags = np.zeros(len(pages), np.uint8)
        np.bitwise_or.at(flags, which, samples["flags"] & (ACCESS_WRITE | ACCESS_BIRTH))
        return merge_pages(pages, flags, samples["node"][first])

    def disarm(self) -> None:
        """Make all pages ordinary and the log empty; the attachment stays."""
        for start, size in self._added.items():
            self.sampler.disarm(start, size)
        self.sampler.drain()  # what came since the last poll is asked for by nobody
        self.sampler.unmap()

    def close(self) -> None:
        """Detach."""
        self.sampler.close()


def _probe() -> SentinelError | None:
    try:
        PageSampler().close()
    except SentinelError as error:
        return error
    return None


MODULE = Backend(
    name="module",
    capabilities=Capabilities(
        reads=True,
        writes=True,
        tells_writes=True,
        births=True,
        nodes=True,
        frequency=False,
        exact=True,
        epochs=True,
        resolution=Resolution.PAGE,
        needs="the kernel module sentinel",
    ),
    probe=_probe,
    open=ModuleWatch,
)
