# SPDX-License-Identifier: Apache-2.0
"""Curves as pictures."""

from __future__ import annotations

from pathlib import Path

import pytest

from sentineld.advise.curve import Point
from sentineld.advise.picture import draw_curves
from sentineld.base.errors import SentinelError
from tests.unit.advise.curves import SIZES, curves_of

pytest.importorskip("matplotlib")

ALONE: dict[str, list[float | None]] = {
    "cxl": [1.3, 1.08, 1.04, 1.01, 0.99],
    "nvme": [None, 1.9, 1.5, 1.3, 1.2],
}
SHARED: dict[str, list[float | None]] = {"cxl": [1.6, 1.4, 1.2, 1.1, 1.049], "nvme": []}


def test_a_picture_names_machines_knees_and_sizes(tmp_path: Path) -> None:
    path = tmp_path / "it.svg"
    draw_curves(curves_of(ALONE, SHARED), 0.05, "run.npz", path)
    text = path.read_text()
    shown = ("cxl: 30%", "cxl: 50%", "nvme: not reached", "one training", "each of 2 trainings")
    for words in (*shown, "enough for +5%", "100.0 MiB", "run.npz"):
        assert f"<!-- {words}" in text or f"{words}: step time" in text, words
    assert text.count("<!-- nvme:") == 1  # the second panel has no results for nvme
    assert "the bound" not in text


def test_bounds_and_one_panel(tmp_path: Path) -> None:
    curves = curves_of(ALONE)
    curves.add(Point("cxl", SIZES[1], 1, 1.08, bound=1.07))
    path = tmp_path / "it.svg"
    draw_curves(curves, 0.05, "run.npz", path)
    assert "(dotted: the bound)" in path.read_text()
    draw_curves(curves, 0.05, "run.npz", tmp_path / "it.png")
    assert (tmp_path / "it.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_without_any_plan(tmp_path: Path) -> None:
    draw_curves(curves_of({"cxl": [None] * 5}), 0.05, "run.npz", tmp_path / "it.png")
    assert (tmp_path / "it.png").stat().st_size > 5000


def test_an_unwritable_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(SentinelError, match="can't write"):
        draw_curves(curves_of(ALONE), 0.05, "run.npz", tmp_path / "none" / "it.png")
