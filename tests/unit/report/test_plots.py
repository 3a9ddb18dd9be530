# SPDX-License-Identifier: Apache-2.0
"""Heatmap and timeline as pictures."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from sentineld.base.errors import SentinelError
from sentineld.profile.trace import profile_of
from sentineld.report.heatmap import heatmap
from sentineld.report.labels import label
from sentineld.report.plots import draw_heatmap, draw_timeline, require_picture
from sentineld.report.timeline import timeline
from tests.unit.traces import recorded

TRACE = recorded()
PROFILE = profile_of(TRACE)
LABELS = label(TRACE, PROFILE)
LINE = timeline(PROFILE, LABELS)


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_pictures_are_drawn(tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("matplotlib")
    magic = {".png": b"\x89PNG", ".svg": b"<?xml"}[suffix]
    for name in ("heatmap", "timeline"):
        path = tmp_path / (name + suffix)
        require_picture(path)
        if name == "heatmap":
            draw_heatmap(heatmap(TRACE, 100), PROFILE, "a trace", path)
        else:
            draw_timeline(LINE, PROFILE, "a trace", path)
        data = path.read_bytes()
        assert data.startswith(magic)
        assert len(data) > 10_000


def test_names_are_drawn_as_they_are(tmp_path: Path) -> None:
    """matplotlib would read "$_$" as a formula, and fail."""
    pytest.importorskip("matplotlib")
    draw_timeline(LINE, PROFILE, "$_$", tmp_path / "it.png")
    assert (tmp_path / "it.png").exists()


def test_problems_of_drawing_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SentinelError, match=r"neither \.png nor \.svg") as error:
        require_picture(tmp_path / "it.jpg")
    assert error.value.code == "usage"
    with pytest.raises(SentinelError, match="none does not exist"):
        require_picture(tmp_path / "none" / "it.png")
    with pytest.raises(SentinelError, match="File name too long"):
        require_picture(tmp_path / f"{'x' * 300}.png")
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(SentinelError, match="is not writable"):
        require_picture(tmp_path / "it.png")
    monkeypatch.undo()
    with pytest.raises(SentinelError, match="can't write"):
        draw_timeline(LINE, PROFILE, "a trace", tmp_path / "none" / "it.png")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SentinelError, match="python3-matplotlib"):
        require_picture(tmp_path / "it.png")
