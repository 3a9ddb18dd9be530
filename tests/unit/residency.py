# SPDX-License-Identifier: Apache-2.0
"""Residency maps without a process, for tests of emulated memory."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from sentineld.model.plan import Space


class ToyResidency:
    """Maps that no process reads, and what was reported to the process.

    changes: changes in the number of fast pages.
    in_flight: numbers of pages in flight to the fast tier.
    """

    flight = None

    def __init__(
        self,
        maps: Mapping[Space, npt.NDArray[np.uint8]],
        page_bytes: int,
        room: int | None = None,
    ) -> None:
        """room: free pages of the fast tier; None: unlimited."""
        self.maps, self.page_bytes, self.room = maps, page_bytes, room
        self.changes: list[int] = []
        self.in_flight: list[int] = []

    def moved(self, pages: int) -> None:
        self.changes.append(pages)

    def flying(self, pages: int) -> None:
        self.in_flight.append(pages)

    def fast_room(self) -> int | None:
        return None if self.room is None else self.room - self.in_flight[-1]
