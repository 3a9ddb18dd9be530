# SPDX-License-Identifier: Apache-2.0
"""Emulated tiers of the shim, made for a small layout."""

from __future__ import annotations

import ctypes
import os

import numpy as np

from sentineld.model.plan import Layout, Region, Space
from sentineld.model.protocol import ACCESS_DTYPE, SLOT_DTYPE, SlotFlag
from sentineld.observe.residency_segment import ResidencySegment
from sentineld.plan.layout_wire import pack_layout
from tests.unit.plan.toys import two_tiers
from tests.unit.shim.blocks import PAGE

ARENA_PAGES = 24
HEAP_PAGES = 32
STRETCHES = 3

SLOTS = np.array(
    [
        (4 * PAGE, 0, SlotFlag.PLANNED | SlotFlag.DROP, 0),
        (4 * PAGE, 16 * PAGE, SlotFlag.PLANNED | SlotFlag.DROP, 0),
        (3 * PAGE + 1, 2 * PAGE, SlotFlag.PLANNED, 0),
        (PAGE, 0, 0, 0),
    ],
    SLOT_DTYPE,
)
LAYOUT = Layout(
    slots=SLOTS,
    cuts=np.zeros(0, np.uint32),
    regions=(
        Region(0, 16 * PAGE, 0, "fast"),
        Region(16 * PAGE, 4 * PAGE, 1, "slow"),
        Region(20 * PAGE, 4 * PAGE, None, "first touch"),
    ),
    waits=np.full(STRETCHES, -1, np.int32),
    arena_bytes=ARENA_PAGES * PAGE,
    heap_tier=1,
)

Rows = np.ndarray[tuple[int], np.dtype[np.void]]


class Emulation:
    """Emulated tiers for LAYOUT with these accesses; the heap has a live block of 3 pages."""

    def __init__(
        self,
        harness: ctypes.CDLL,
        accesses: Rows,
        before: Emulation | None = None,
        *,
        fast_pages: int | None = None,
        step: int = 1,
    ) -> None:
        """step: the step that has just ended; the live block was born in step 0."""
        self.harness = harness
        if before is None:
            self.heap = harness.test_heap_new(HEAP_PAGES * PAGE)
            assert harness.test_heap_take(self.heap, 3 * PAGE)
        else:
            self.heap = before.heap
        fd = os.memfd_create("layout")
        os.write(fd, pack_layout(LAYOUT, 5, two_tiers(), STRETCHES, accesses, fast_pages))
        problem = ctypes.c_char_p()
        self.handle = harness.test_emulation_new(
            fd, self.heap, before.handle if before else None, step, ctypes.byref(problem)
        )
        os.close(fd)
        assert not problem.value, problem.value
        self.segment = ResidencySegment(harness.test_emulation_fd(self.handle))
        self.arena = self.segment.maps[Space.ARENA]
        self.heap_map = self.segment.maps[Space.HEAP]

    def charge(self, stretch: int) -> tuple[int, int, int]:
        """Call emulation_charge() for the stretch: this adds delays to the delay debt. Returns the
        number of accesses that the call counts, the number of those to fast pages, and the added
        delay in ns."""
        owed_ns = self.segment.owed_ns
        served = (ctypes.c_uint32 * 2)()
        self.harness.test_emulation_charge(self.handle, stretch, served)
        return served[0], served[1], self.segment.owed_ns - owed_ns

    def close(self) -> None:
        self.harness.test_emulation_delete(self.handle)
        self.harness.test_heap_delete(self.heap)


def no_accesses() -> Rows:
    return np.zeros(0, ACCESS_DTYPE)
