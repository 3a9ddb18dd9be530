# SPDX-License-Identifier: Apache-2.0
"""The picture of the demo's first part: step times of all turns, and the memory used."""

from __future__ import annotations

from pathlib import Path

import matplotlib

from tests.bench.paging.figures import OURS, RAM
from tests.demo.paging.rules import Report, ran

matplotlib.use("Agg")
from matplotlib import pyplot

COLOURS = {RAM: "#c9c9c9", OURS: "#1f77b4"}
OTHER = "#d98b5f"
MIB = 1 << 20


def draw(report: Report, path: Path) -> None:
    """Write the picture as PNG."""
    figure, (left, right) = pyplot.subplots(
        1, 2, figsize=(11, 3.2), width_ratios=(3, 2), layout="constrained"
    )
    _step_times(left, report)
    _memory(right, report)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _step_times(axes: pyplot.Axes, report: Report) -> None:
    found = ran(report)
    longest_s = max(turn["step_s"] for one in found.values() for turn in one["turns"])
    for place, (name, one) in enumerate(found.items()):
        steps_s = [turn["step_s"] for turn in one["turns"]]
        axes.barh(-place, one["step_seconds"], 0.6, color=COLOURS.get(name, OTHER))
        axes.plot(steps_s, [-place] * len(steps_s), "k.", markersize=5)
        label = f"{one['step_seconds']:.2f} s, {one['over_ram']:.2f} x"
        axes.text(max(steps_s) + 0.02 * longest_s, -place, label, va="center")
    _names(axes, report)
    axes.set(
        title=f"{report['model']}: step time (median; a dot is a turn)",
        xlabel="seconds",
        xlim=(0, 1.3 * longest_s),
    )


def _memory(axes: pyplot.Axes, report: Report) -> None:
    for place, (name, one) in enumerate(ran(report).items()):
        used = max(turn["peak_bytes"] for turn in one["turns"]) / MIB
        axes.barh(-place, used, 0.6, color=COLOURS.get(name, OTHER))
        if one["limit_bytes"] is not None:
            axes.plot([one["limit_bytes"] / MIB] * 2, [-place - 0.4, -place + 0.4], "k--")
    _names(axes, report)
    axes.set(title="memory used (dashed: limit)", xlabel="MiB")


def _names(axes: pyplot.Axes, report: Report) -> None:
    found = list(ran(report))
    names = [report["titles"][name] for name in found]
    axes.set_yticks([-place for place in range(len(found))], names)
