# SPDX-License-Identifier: Apache-2.0
"""Draws a Grafana dashboard from its JSON and Prometheus's answers: all panels in their grid.

Supports only the features that the dashboards in docs/grafana use: panels of the types row, stat
and timeseries, with titles, units, limits, stacks and legends.
"""

from __future__ import annotations

import io
import itertools
import math
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import numpy.typing as npt
from PIL import Image

from tests.board_pictures import units
from tests.board_pictures.answers import Answers
from tests.dashboard import panels

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.dates import DateFormatter, MinuteLocator
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

COLUMNS = 24  # of Grafana's grid
COLUMN, ROW, GAP = 58, 28, 8
"""Width of a column of the grid, height of a row, and gap between two panels, in pixels."""
MARGIN, HEAD = 12, 78
"""Width of the margin around the grid, and height of the title above the grid, in pixels."""
DPI = 100
LINE = 15  # height of a line of the legend, in pixels
LEGEND_LINES = 4
LETTER = 5.6  # mean width of a letter in the legend, in pixels
SWATCH = 22  # width of the coloured mark before a name in the legend, in pixels
NAME_LETTERS = 52

PAGE, PANEL, BORDER, INK, PALE = "#f4f5f5", "#ffffff", "#d8dadf", "#24292e", "#767b83"
GRID = "#e9ebee"
COLOURS = (
    *("#1f60c4", "#e0752d", "#37872d", "#c4162a", "#8f3bb8"),
    *("#7c5a3c", "#d683ce", "#6e7079", "#b0a000", "#1aa5b8"),
)

Named = tuple[str, npt.NDArray[np.float64]]


def draw(board: dict[str, Any], answers: Answers, path: Path) -> None:
    """Write the picture as PNG."""
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels(board))
    canvas = Canvas(COLUMNS * COLUMN + 2 * MARGIN, rows * ROW + HEAD + MARGIN)
    canvas.text(MARGIN + 4, 28, board["title"], size=19, weight="bold")
    canvas.text(MARGIN + 4, 50, answers.source, size=11, color=PALE)
    canvas.text(MARGIN + 4, 67, _method(answers), size=11, color=PALE)
    for panel in panels(board):
        place = panel["gridPos"]
        left, top = MARGIN + place["x"] * COLUMN, HEAD + place["y"] * ROW
        box = Box(left, top, place["w"] * COLUMN - GAP, place["h"] * ROW - GAP)
        named = _named(panel, answers)
        if panel["type"] == "row":
            canvas.text(left + 4, top + 19, f"▾ {panel['title']}", size=13, weight="bold")
        elif panel["type"] == "stat":
            _stat(canvas, box, panel, named)
        else:
            _graph(canvas, box, panel, named, answers)
    canvas.save(path)


def _method(answers: Answers) -> str:
    begin, end = (datetime.fromtimestamp(at, UTC) for at in (answers.begin_s, answers.end_s))
    return (
        f"Prometheus's answers from {begin:%Y-%m-%d %H:%M:%S} to {end:%H:%M:%S} UTC, one value in"
        f" {answers.step_s:g} s; drawn from the dashboard's JSON by make dashboard-pictures, not by"
        " Grafana"
    )


class Box:
    """A rectangle in pixels; y counts from the top."""

    def __init__(self, left: float, top: float, width: float, height: float) -> None:
        self.left, self.top, self.width, self.height = left, top, width, height

    def inside(self, left: float, top: float, right: float, bottom: float) -> Box:
        """The part of the rectangle inside these margins."""
        width, height = self.width - left - right, self.height - top - bottom
        return Box(self.left + left, self.top + top, width, height)


class Canvas:
    """A picture whose parts are placed at pixel coordinates."""

    def __init__(self, width: int, height: int) -> None:
        self._size = np.array([width, height])
        self.figure = pyplot.figure(figsize=self._size / DPI, dpi=DPI, facecolor=PAGE)

    def text(self, x: float, y: float, text: str, *, size: float = 11, **style: Any) -> None:
        """Draw text whose baseline begins at this point. size: in pixels."""
        style = {"color": INK, **style}
        x, y = x / self._size[0], 1 - y / self._size[1]
        # Without the backslash, matplotlib would read "$" as the start of a formula.
        self.figure.text(x, y, text.replace("$", r"\$"), size=size * 72 / DPI, **style)

    def box(self, box: Box, fill: str, border: str) -> None:
        width, height = np.array([box.width, box.height]) / self._size
        corner = box.left / self._size[0], 1 - (box.top + box.height) / self._size[1]
        style = {"facecolor": fill, "edgecolor": border, "linewidth": 0.8}
        shape = Rectangle(corner, width, height, zorder=-1, **style)  # below the axes
        self.figure.add_artist(shape)

    def axes(self, box: Box) -> Any:
        left, width = np.array([box.left, box.width]) / self._size[0]
        bottom, height = np.array([-box.top - box.height, box.height]) / self._size[1]
        return self.figure.add_axes((left, 1 + bottom, width, height), facecolor=PANEL)

    def save(self, path: Path) -> None:
        """Write the PNG with a palette, which reduces the file to a third of its size."""
        file = io.BytesIO()
        self.figure.savefig(file, dpi=DPI, facecolor=PAGE)
        pyplot.close(self.figure)
        picture = Image.open(file).convert("RGB").quantize(256, dither=Image.Dither.NONE)
        path.parent.mkdir(parents=True, exist_ok=True)
        picture.save(path, optimize=True)


def _named(panel: dict[str, Any], answers: Answers) -> list[Named]:
    """The name and the values of each series of a panel; NaN where there is no value."""
    found = []
    for target in panel.get("targets") or []:
        for series in answers.series[target["expr"]]:
            name = _legend_text(target["legendFormat"], series["metric"])
            steps = round((answers.end_s - answers.begin_s) / answers.step_s) + 1
            values = np.full(steps, np.nan)
            for at_s, value in series["values"]:
                values[round((at_s - answers.begin_s) / answers.step_s)] = float(value)
            values[~np.isfinite(values)] = np.nan  # a division by 0 in the query
            if np.isfinite(values).any():
                found.append((name, values))
    return found


def _legend_text(template: str, labels: dict[str, str]) -> str:
    return re.sub(r"{{(\w+)}}", lambda match: labels.get(match[1], ""), template).strip()


def _title(canvas: Canvas, box: Box, panel: dict[str, Any]) -> None:
    canvas.box(box, PANEL, BORDER)
    canvas.text(box.left + 9, box.top + 19, panel["title"], size=12.5, weight="bold")


def _no_data(canvas: Canvas, box: Box) -> None:
    x, y = box.left + box.width / 2, box.top + box.height / 2 + 12
    canvas.text(x, y, "No data", size=13, color=PALE, ha="center")


def _stat(canvas: Canvas, box: Box, panel: dict[str, Any], named: list[Named]) -> None:
    """Draw a panel with the last value of each series."""
    _title(canvas, box, panel)
    if not named:
        return _no_data(canvas, box)
    unit = panel["fieldConfig"]["defaults"]["unit"]
    last = [(name, units.text(unit, _last(values))) for name, values in named]
    with_names = panel["options"]["textMode"] == "value_and_name" or len(last) > 1
    columns = 1 if len(last) == 1 else 2
    lines = math.ceil(len(last) / columns)
    inner = box.inside(12, 30, 8, 6)
    size = min(30.0 if len(last) == 1 else 16.0, inner.height / lines * 0.75)
    for index, (name, value) in enumerate(last):
        column, line = divmod(index, lines)
        x = inner.left + column * inner.width / columns
        y = inner.top + (line + 0.5) * inner.height / lines + size * 0.35
        canvas.text(x, y, value, size=size, color=COLOURS[0])
        if with_names:
            x += (len(value) + 1) * size * 0.58
            canvas.text(x, y, name, size=min(size, 12))


def _last(values: npt.NDArray[np.float64]) -> float:
    return float(values[np.isfinite(values)][-1])


def _graph(
    canvas: Canvas, box: Box, panel: dict[str, Any], named: list[Named], answers: Answers
) -> None:
    _title(canvas, box, panel)
    if not named:
        return _no_data(canvas, box)
    defaults = panel["fieldConfig"]["defaults"]
    stacked = defaults.get("custom", {}).get("stacking", {}).get("mode") == "normal"
    columns, legend_lines = _legend_size(box, named)
    values = np.array([series for _, series in named])
    heights = np.nansum(values, axis=0) if stacked else values
    divisor, suffix = units.scale(defaults["unit"], float(np.nanmax(np.abs(heights))))
    values = values / divisor
    axes = canvas.axes(box.inside(64, 30, 20, 26 + 6 + legend_lines * LINE))
    times = [
        datetime.fromtimestamp(answers.begin_s + index * answers.step_s, UTC)
        for index in range(values.shape[1])
    ]
    lines = np.where(np.isnan(values), np.nan, np.nancumsum(values, axis=0)) if stacked else values
    for index, (line, colour) in enumerate(zip(lines, _colours(len(named)), strict=True)):
        alone = np.isfinite(line).sum() == 1
        axes.plot(times, line, color=colour, linewidth=1.3, marker="." if alone else "")
        if stacked:
            below = np.nansum(values[:index], axis=0)
            axes.fill_between(times, below, line, where=np.isfinite(line), color=colour, alpha=0.3)
    _limits(axes, defaults, divisor)
    _axes_style(axes, times, suffix)
    _legend(canvas, box, named, columns, legend_lines)


def _colours(count: int) -> list[str]:
    return list(itertools.islice(itertools.cycle(COLOURS), count))


def _limits(axes: Any, defaults: dict[str, Any], divisor: float) -> None:
    """Set the limits of the value axis if the panel has a minimum. The range of values goes from
    this minimum to the panel's maximum or, if the panel has none, to the largest value. The axis
    is 8 % longer than this range; if the range is empty, the axis has the length 1."""
    low, high = axes.get_ylim()
    if "min" in defaults:
        low = defaults["min"] / divisor
        top = defaults["max"] / divisor if "max" in defaults else axes.dataLim.y1
        high = low + 1.08 * (top - low) if top > low else low + 1
    axes.set_ylim(low, high)


def _axes_style(axes: Any, times: list[datetime], suffix: str) -> None:
    axes.set_xlim(times[0], times[-1])
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=(1, 2, 2.5, 5, 10)))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}{suffix}")
    minutes = (times[-1] - times[0]).total_seconds() / 60
    every = next(step for step in (1, 2, 5, 10, 30, 60) if minutes / step < 5 or step == 60)
    axes.xaxis.set_major_locator(MinuteLocator(range(0, 60, every), tz=UTC))
    axes.xaxis.set_major_formatter(DateFormatter("%H:%M", tz=UTC))
    axes.tick_params(labelsize=10 * 72 / DPI, labelcolor=PALE, length=0, pad=4)
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _shortened(name: str) -> str:
    return name if len(name) <= NAME_LETTERS else f"{name[: NAME_LETTERS - 1]}…"


def _legend_size(box: Box, named: list[Named]) -> tuple[int, int]:
    """The numbers of columns and lines of the legend."""
    width = SWATCH + LETTER * max(len(_shortened(name)) for name, _ in named)
    columns = max(1, min(len(named), int((box.width - 16) // width)))
    return columns, min(math.ceil(len(named) / columns), LEGEND_LINES)


def _legend(canvas: Canvas, box: Box, named: list[Named], columns: int, lines: int) -> None:
    """Draw the names of the series. If they need more than `lines` lines, the last place in the
    legend says how many names are missing."""
    names = [_shortened(name) for name, _ in named]
    places = columns * lines
    if len(names) > places:
        names = [*names[: places - 1], f"and {len(names) - places + 1} more"]
    width = (box.width - 16) / columns
    for index, (name, colour) in enumerate(zip(names, _colours(len(names)), strict=True)):
        line, column = divmod(index, columns)
        x = box.left + 12 + column * width
        y = box.top + box.height - 9 - (lines - 1 - line) * LINE
        if not name.startswith("and ") or index < places - 1:
            canvas.box(Box(x, y - 5, 12, 3), colour, colour)
        canvas.text(x + SWATCH - 5, y, name, size=10.5)
