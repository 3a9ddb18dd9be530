# SPDX-License-Identifier: Apache-2.0
"""Finding written pages by soft-dirty bits."""

from __future__ import annotations

import numpy as np

from sentineld.observe.softdirty import written_pages


def test_soft_dirty_entries_without_a_page_are_not_written_pages() -> None:
    present, swapped, dirty = 1 << 63, 1 << 62, 1 << 55
    entries = [present | dirty, present, swapped | dirty, dirty, 0]
    assert written_pages(np.array(entries, np.uint64)).tolist() == [0, 2]
