# SPDX-License-Identifier: Apache-2.0
"""Dead pages that a layout has kept are dropped when another layout replaces it, or when the shim
stops using layouts (native.detach())."""

from __future__ import annotations

import pytest

from tests.unit.shim.shimmed import shimmed

SCRIPT = """
import os
import numpy as np
from sentineld.model import protocol
from sentineld.model.plan import SLOT_DTYPE, Layout
from sentineld.model.protocol import SlotFlag
from sentineld.model.tiers import Tier, Tiers
from sentineld.plan.layout_wire import pack_layout

PAGE = 4096
TIERS = Tiers((Tier((0,), 1 << 30), Tier((0,), 1 << 30)), 1e9, "config")
DEAD, LIVE, LAST = 100, 50, 70  # pages of the slots; their limits lie within words of the bitmap

def use(*pages):
    # Use a layout of slots with these numbers of pages, none of which drops its pages.
    slots = np.zeros(len(pages), SLOT_DTYPE)
    slots["bytes"], slots["flags"] = np.array(pages) * PAGE, SlotFlag.PLANNED
    slots["offset"] = np.cumsum([0, *pages[:-1]]) * PAGE
    layout = Layout(slots, np.zeros(0, np.uint32), (), np.full(1, -1, np.int32), sum(pages) * PAGE)
    fd = os.memfd_create("layout")
    os.write(fd, pack_layout(layout, 7, TIERS, 1, np.zeros(0, protocol.ACCESS_DTYPE)))
    problem = native.layout(fd)
    os.close(fd)
    assert not problem, problem

def born(pages, value):
    return torch.full((pages * PAGE,), value, dtype=torch.uint8)

def resident(page, pages):
    # How many of the pages of the first layout's arena are in memory or in swap.
    with open("/proc/self/pagemap", "rb") as file:
        file.seek((arena // PAGE + page) * 8)
        entries = np.frombuffer(file.read(8 * pages), np.uint64)
    return int(np.count_nonzero(entries >> np.uint64(62)))

def counts():
    return [resident(0, DEAD), resident(DEAD, LIVE), resident(DEAD + LIVE, LAST)]

use(DEAD, LIVE, LAST)
arena = native.word(0xC0)
native.step_begin()
first, kept, last = born(DEAD, 1), born(LIVE, 2), born(LAST, 3)
assert kept.data_ptr() == arena + DEAD * PAGE
del first, last
found = [counts()]
if os.environ["END"] == "detach":
    native.detach()
else:
    use(8)
found += [counts(), bool((kept == 2).all())]
kept[:] = 5
del kept
print(json.dumps([*found, counts()]))
"""


@pytest.mark.parametrize("end", ["detach", "layout"])
def test_a_former_layout_keeps_only_live_tensors(end: str) -> None:
    kept, after, intact, freed = shimmed(SCRIPT, END=end)
    assert kept == [100, 50, 70]
    assert after == [0, 50, 0]
    assert intact
    assert freed == [0, 0, 0]
