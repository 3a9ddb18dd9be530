# SPDX-License-Identifier: Apache-2.0
"""Heatmap and timeline as text."""

from __future__ import annotations

import pytest

from sentineld.profile.trace import profile_of
from sentineld.report.heatmap import heatmap
from sentineld.report.labels import KINDS, label
from sentineld.report.terminal import heatmap_lines, timeline_lines
from sentineld.report.timeline import timeline
from tests.unit.traces import recorded

TRACE = recorded()
PROFILE = profile_of(TRACE)
LABELS = label(TRACE, PROFILE)
LINE = timeline(PROFILE, LABELS)


@pytest.mark.parametrize("width", [10, 20, 30, 60, 80, 400])
def test_the_terminal_shows_the_whole_step(width: int) -> None:
    lines = heatmap_lines(heatmap(TRACE, 12), PROFILE, width)
    fields = [line.split("│")[1] for line in lines if "│" in line]
    assert len(fields) == 12
    assert all(len(line) <= max(width, 20) for line in lines)
    assert " ".join(lines).endswith("no live tensor source of accesses: sampled pages")
    assert lines[1].split("│")[0].strip() == "heap+0 B"
    shown = set("".join(fields))
    assert shown <= set(" ·░▒▓█")
    assert {"·", "█"} <= shown or width < 60
    chart = timeline_lines(LINE, PROFILE, width)
    kinds = [kind for index, kind in enumerate(KINDS) if LINE.live[index].any()]
    assert [line.split()[0] for line in chart if "│" in line] == [*kinds, "all"]
    assert all(len(line) <= max(width, 27) for line in chart)
    assert "peak" in chart[len(kinds) + 2]
    if width >= 400:
        for text in (lines[0], chart[0]):
            assert "forward" in text
            assert "backward" in text
            assert "optimizer" in text
