# SPDX-License-Identifier: Apache-2.0
"""Curves as a .png or .svg picture, drawn by matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sentineld.advise.curve import Curves, Point, knee_of
from sentineld.advise.words import share_text
from sentineld.base.units import format_bytes
from sentineld.report.plots import load_pyplot, save_picture

EXCESS_TICKS = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)
"""Ticks of the axis that shows _excess_percent(). The axis is linear up to LINEAR_TO and
logarithmic above it, so that the picture clearly shows both a knee at a few per cent and the long
steps of a slow disk."""
LINEAR_TO = 2.0
SHARE_TICKS_MAX = 12
LEGEND_COLUMNS = 4
BYTES_TICKS = 5


def draw_curves(curves: Curves, excess: float, title: str, path: Path) -> None:
    """Draw a panel for each number of trainings, with a line for each machine. Raises SentinelError
    if matplotlib is not installed or the file cannot be written."""
    pyplot = load_pyplot()
    panels = range(1, curves.trainings_max + 1)
    figure, all_axes = pyplot.subplots(
        1,
        len(panels),
        figsize=(1 + 6.2 * len(panels), 5.6),
        layout="constrained",
        sharey=True,
        squeeze=False,
    )
    most = max((_excess_percent(point) for point in curves.points.values()), default=0.0)
    for axes, trainings in zip(all_axes[0], panels, strict=True):
        _panel(axes, curves, trainings, excess)
        axes.set_yscale("symlog", linthresh=LINEAR_TO, linscale=0.6)
        ticks = [tick for tick in EXCESS_TICKS if tick <= max(2 * most, LINEAR_TO)]
        axes.set_yticks(ticks, [f"{tick}%" for tick in ticks])
        axes.minorticks_off()
        axes.set_ylim(-0.15, max(most * 1.25, 100 * excess * 2, LINEAR_TO))
    all_axes[0][0].set_ylabel("step longer than all-fast by")
    figure.suptitle(
        f"{title}: step time by fast memory, policy {curves.policy_name}; "
        f"all-fast step {curves.fast_only_seconds:.3g} s"
    )
    save_picture(figure, path)


def _panel(axes: Any, curves: Curves, trainings: int, excess: float) -> None:
    for number, machine in enumerate(curves.machines):
        points = [
            point for point in curves.curve(machine.name, trainings) if point.slowdown is not None
        ]
        if not points:
            continue
        knee = knee_of(curves.curve(machine.name, trainings), excess)
        enough = "not reached" if knee is None else share_text(curves, knee.point.fast_bytes)
        colour = f"C{number}"
        axes.plot(
            [100 * curves.share(point.fast_bytes) for point in points],
            [_excess_percent(point) for point in points],
            "o-",
            color=colour,
            markersize=4,
            label=f"{machine.name}: {enough}",
        )
        if knee is not None:
            axes.plot(
                [100 * curves.share(knee.point.fast_bytes)],
                [_excess_percent(knee.point)],
                "o",
                markersize=12,
                markerfacecolor="none",
                markeredgecolor=colour,
                markeredgewidth=1.8,
            )
        below = [point for point in points if point.bound is not None]
        if below:
            axes.plot(
                [100 * curves.share(point.fast_bytes) for point in below],
                [100 * ((point.bound or 1.0) - 1) for point in below],
                ":",
                color=colour,
                linewidth=1.2,
            )
    axes.axhline(100 * excess, color="black", linewidth=0.9, linestyle="--")
    shares = [100 * curves.share(size) for size in curves.sizes]
    if len(shares) <= SHARE_TICKS_MAX:
        axes.set_xticks(shares, [share_text(curves, size) for size in curves.sizes])
    else:
        axes.xaxis.set_major_formatter("{x:g}%")
    axes.set_xlabel("fast memory of the machine, share of one training's peak")
    above = axes.secondary_xaxis("top")
    every = -(-len(curves.sizes) // BYTES_TICKS)
    shown = curves.sizes[::every]
    above.set_xticks(
        [100 * curves.share(size) for size in shown], [format_bytes(size) for size in shown]
    )
    above.tick_params(labelsize=8)
    axes.set_title("one training" if trainings == 1 else f"each of {trainings} trainings")
    axes.grid(alpha=0.3)
    if axes.lines[1:]:
        bounded = any(point.bound is not None for point in curves.points.values())
        # Put the legend below the panel, because curves can be anywhere inside the panel.
        axes.legend(
            title=f"enough for +{100 * excess:g}%" + " (dotted: the bound)" * bounded,
            loc="upper center",
            bbox_to_anchor=(0.5, -0.1),
            ncols=LEGEND_COLUMNS,
            columnspacing=1.2,
            fontsize=9,
            frameon=False,
        )


def _excess_percent(point: Point) -> float:
    """The time by which the step is longer than with all memory fast, in per cent of its all-fast
    time. A step in which accesses to both tiers overlap can be shorter than with all memory fast;
    such a step is drawn at 0."""
    return 0.0 if point.slowdown is None else max(100 * (point.slowdown - 1), 0.0)
