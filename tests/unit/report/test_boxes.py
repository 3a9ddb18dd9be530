# SPDX-License-Identifier: Apache-2.0
"""The rectangles of tensors in a heatmap."""

from __future__ import annotations

import numpy as np

from sentineld.profile.trace import profile_of
from sentineld.report.boxes import recorded_boxes
from sentineld.report.heatmap import heatmap
from tests.unit.traces import recorded

TRACE = recorded()
PROFILE = profile_of(TRACE)


def test_the_boxes_cover_the_live_pages() -> None:
    heat = heatmap(TRACE, 1 << 30)  # one row for each page
    boxes = recorded_boxes(TRACE, heat.axis)
    covered = np.zeros(heat.live.shape, np.bool_)
    for at in range(len(boxes.tensor)):
        stretches = slice(int(boxes.first[at]), int(boxes.last[at]) + 1)
        covered[int(boxes.begin[at]) : int(boxes.past[at]), stretches] = True
    assert np.array_equal(covered, heat.live > 0)


def test_a_tensor_that_lives_across_the_steps_end_has_two_boxes() -> None:
    boxes = recorded_boxes(TRACE, heatmap(TRACE, 10).axis)
    wraps = np.flatnonzero(PROFILE.tensors["wraps"])
    assert len(wraps)
    for tensor in wraps.tolist():
        mine = boxes.take(boxes.tensor == tensor)
        assert sorted(mine.first.tolist())[0] == 0
        assert PROFILE.stretch_count - 1 in mine.last.tolist()
        assert len(mine.tensor) == 2
