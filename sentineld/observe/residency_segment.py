# SPDX-License-Identifier: Apache-2.0
"""The daemon's view of a shim's residency segment: the node of each page on emulated or paged
tiers.

The process may write anything into the segment at any time, as into the control segment.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sentineld.model import protocol
from sentineld.model.plan import Space
from sentineld.model.records import PAGE_BYTES
from sentineld.observe.flight_segment import FlightSegment
from sentineld.observe.paging_segment import PagingSegment
from sentineld.observe.segment import map_segment, mismatch, require_header

NAME = "residency"
SEGMENT_BYTES_MAX = 1 << 32
ROOM_WORDS = ("fast_limit", "fast_own", "moved_fast", "in_flight_fast")


class ResidencySegment:
    """A mapped residency segment."""

    def __init__(self, fd: int) -> None:
        """Map and check the segment; the caller closes the descriptor. Raises SentinelError."""
        mapped = map_segment(fd, NAME, protocol.RESIDENCY_DTYPE.itemsize, SEGMENT_BYTES_MAX)
        size = len(mapped)
        self._header = np.frombuffer(mapped, protocol.RESIDENCY_DTYPE, 1)
        self._room = self._header[list(ROOM_WORDS)]
        fixed = self._header[0].copy()
        require_header(fixed, NAME, protocol.RESIDENCY_MAGIC)
        self.layout_id = int(fixed["layout_id"])
        self.page_bytes = int(fixed["page_bytes"])
        if self.page_bytes < PAGE_BYTES or self.page_bytes & (self.page_bytes - 1):
            raise mismatch(NAME, f"its page size is {self.page_bytes} bytes")
        self.maps: dict[Space, npt.NDArray[np.uint8]] = {}
        """One byte per page: 0 if absent, else 1 + node."""
        for space, name in ((Space.ARENA, "arena"), (Space.HEAP, "heap")):
            offset, pages = int(fixed[f"{name}_offset"]), int(fixed[f"{name}_pages"])
            if offset > size or pages > size - offset:
                raise mismatch(NAME, f"its map of the {name} is out of bounds")
            self.maps[space] = np.frombuffer(mapped, np.uint8, pages, offset)
        self.paging: PagingSegment | None = None
        """The part for paged memory; None if the segment has no such part: the shim leaves it out
        if the process has no pager."""
        if offset := int(fixed["paging_offset"]):
            if offset % 8 or offset > size or protocol.PAGING_DTYPE.itemsize > size - offset:
                raise mismatch(NAME, "its part for paged memory is out of bounds")
            self.paging = PagingSegment(np.frombuffer(mapped, protocol.PAGING_DTYPE, 1, offset))
        self.flight: FlightSegment | None = None
        """The part for the batch of pages in flight (flight_segment.py); None if the segment has no
        such part: the shim leaves it out if the process has a pager."""
        if offset := int(fixed["flight_offset"]):
            if offset % 8 or offset > size or protocol.FLIGHT_DTYPE.itemsize > size - offset:
                raise mismatch(NAME, "its part for the batch in flight is out of bounds")
            self.flight = FlightSegment(np.frombuffer(mapped, protocol.FLIGHT_DTYPE, 1, offset))

    def close(self) -> None:
        """Unmap the segment. The maps are then empty. The counters can still be read and changed
        here, but are no longer shared with the process."""
        self._header = self._header.copy()
        self._room = self._header[list(ROOM_WORDS)]
        self.maps = {space: np.empty(0, np.uint8) for space in self.maps}
        if self.paging is not None:
            self.paging.close()
        if self.flight is not None:
            self.flight.close()

    def moved(self, pages: int) -> None:
        """Report to the process that moves have changed the number of fast pages by `pages`, which
        can be negative."""
        self._header["moved_fast"] += pages

    def flying(self, pages: int) -> None:
        """Report to the process the number of pages in flight to the fast node."""
        self._header["in_flight_fast"] = pages

    def fast_room(self) -> int | None:
        """Free pages of the fast node, minus the pages in flight to it.

        Negative if the node is overcommitted; None: unlimited.
        """
        limit, own, moved, in_flight = self._room.item()
        return limit - own - moved - in_flight if limit else None

    @property
    def owed_ns(self) -> int:
        """Total delay, paid or not, that the timing model gives for the accesses to slow pages."""
        return int(self._header["owed_ns"][0])

    @property
    def paid_ns(self) -> int:
        """Total time that the process has waited to pay the delay. It can exceed owed_ns, because a
        wait can overrun."""
        return int(self._header["paid_ns"][0])
