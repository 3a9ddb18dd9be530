# SPDX-License-Identifier: Apache-2.0
"""The fallback backend always works, and reports no accessed page."""

from __future__ import annotations

from sentineld.observe.backend import AREA_DTYPE, Target
from sentineld.observe.shim_only import SHIM_ONLY


def test_no_window_has_areas() -> None:
    assert SHIM_ONLY.probe() is None
    # The process need not exist: nothing is opened.
    watch = SHIM_ONLY.open(Target(1 << 30))
    for _ in range(2):
        watch.begin([(4096, 8192)])
        watch.poll()
        areas = watch.end()
        assert (areas.dtype, len(areas)) == (AREA_DTYPE, 0)
    watch.close()
    watch.close()
