# SPDX-License-Identifier: Apache-2.0
"""The kernel module's backend: observes reads and writes of every page, with node and epoch."""

from __future__ import annotations

import numpy as np

from sentineld.base.errors import SentinelError
from sentineld.model.records import ACCESS_BIRTH, ACCESS_WRITE, NO_ACCESS
from sentineld.model.sampled import sampled_pages
from sentineld.observe.backend import (
    Areas,
    Backend,
    Capabilities,
    Ranges,
    Resolution,
    Target,
    merge_pages,
)
from sentineld.observe.page_sampler import PageSampler


class ModuleWatch:
    """A PageSampler and its ranges; closing the watch disarms all pages."""

    def __init__(self, target: Target) -> None:
        """Attach to the target's process. Raises SentinelError.

        A process with a pager is refused. The pager maps pages with userfaultfd, before their first
        access. That access then causes no fault, so the module would not see it.
        """
        if target.paged:
            raise SentinelError(
                "failed", f"the module does not see the pages that the pager of {target.pid} maps"
            )
        self.sampler = PageSampler()
        try:
            self.sampler.attach(
                target.pid,
                target.log_records,
                rearm_us=target.rearm_us,
                uid=target.uid,
                start_ticks=target.start_ticks,
            )
        except BaseException:
            self.sampler.close()
            raise
        self._added: dict[int, int] = {}

    def begin(self, ranges: Ranges) -> None:
        """Arm the ranges and begin an epoch."""
        self.arm(ranges)
        self.sampler.begin_epoch()
        self.sampler.drain()

    def arm(self, ranges: Ranges) -> None:
        """Arm the ranges, and stop watching all other ranges. The ranges must not overlap.

        Afterwards, the caller or the shim has to begin an epoch. From that epoch on, the records of
        the ranges are complete.
        """
        given = dict(ranges)
        # Each layout can have an arena at another address. The module refuses overlapping ranges
        # and limits the number of ranges, so the ranges of earlier arenas must be removed first.
        for start, size in list(self._added.items()):
            if given.get(start) != size:
                self.sampler.remove_range(start, size)
                del self._added[start]
        for start, size in ranges:
            if start not in self._added:
                self.sampler.add_range(start, size)
                self._added[start] = size
            self.sampler.arm(start, size)

    def poll(self) -> None:
        """Do nothing: the log is assumed to have room for all records of a window (backend.py)."""

    def end(self) -> Areas:
        """Disarm the pages and return the accessed ones.

        Begins another epoch first: some first touches are logged only when their epoch ends.
        Omits pages that were logged only as unknown, because they may or may not have been
        accessed.
        """
        self.sampler.begin_epoch()
        samples = self.sampler.drain()
        self.disarm()
        samples = samples[samples["flags"] & NO_ACCESS == 0]
        row, page = sampled_pages(samples)
        pages, first, which = np.unique(page, return_index=True, return_inverse=True)
        flags = np.zeros(len(pages), np.uint8)
        np.bitwise_or.at(flags, which, samples["flags"][row] & (ACCESS_WRITE | ACCESS_BIRTH))
        return merge_pages(pages.astype(np.uint64), flags, samples["node"][row][first])

    def disarm(self) -> None:
        """Disarm all pages and empty the log; the sampler stays attached."""
        for start, size in self._added.items():
            self.sampler.disarm(start, size)
        self.sampler.drain()  # discard the records since the last drain
        self.sampler.unmap()

    def close(self) -> None:
        """Disarm all pages and detach."""
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
        distinguishes_writes=True,
        births=True,
        nodes=True,
        frequency=False,
        exact=True,
        epochs=True,
        resolution=Resolution.PAGE,
    ),
    probe=_probe,
    open=ModuleWatch,
)
