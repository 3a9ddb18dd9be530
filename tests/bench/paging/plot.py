# SPDX-License-Identifier: Apache-2.0
"""Plot of bench-paging: step times divided by those in RAM, by model and contestant."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib import pyplot

from tests.bench.paging.figures import CONTESTANTS, RAM

Row = dict[str, Any]


def draw(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Draw a panel per fraction, as svg and png; return the files."""
    mpl.use("Agg")
    shown = [row for row in rows if "over_ram" in row]
    fractions = sorted({row["fraction"] for row in shown}, reverse=True)
    if not fractions:
        return []
    models = list(dict.fromkeys(row["model"] for row in shown))
    names = [name for name in CONTESTANTS if name != RAM]
    figure, panels = pyplot.subplots(
        len(fractions), 1, figsize=(1.2 * len(models) + 3, 3.5 * len(fractions)), squeeze=False
    )
    width = 0.8 / len(names)
    for axes, fraction in zip(panels[:, 0], fractions, strict=True):
        for at, name in enumerate(names):
            mine = {
                row["model"]: row["over_ram"]
                for row in shown
                if (row["contestant"], row["fraction"]) == (name, fraction)
            }
            places = [number + at * width for number, model in enumerate(models) if model in mine]
            found = [mine[model] for model in models if model in mine]
            heights = np.array([one["value"] for one in found])
            spread = np.array([[one["low"] for one in found], [one["high"] for one in found]])
            if len(found):
                axes.bar(places, heights, width, label=name, yerr=np.abs(spread - heights))
        axes.axhline(1.0, color="black", linewidth=0.8)
        axes.set_xticks(np.arange(len(models)) + 0.4 - width / 2, models)
        axes.set_ylabel(f"step time / step time in RAM\n{fraction:.0%} of the tensors' peak")
        axes.set_yscale("log")
        axes.legend(fontsize=7, ncols=3)
    files = [folder / f"paging.{kind}" for kind in ("svg", "png")]
    for file in files:
        figure.savefig(file, dpi=120, bbox_inches="tight")
    pyplot.close(figure)
    return files
