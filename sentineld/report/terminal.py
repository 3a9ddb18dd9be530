# SPDX-License-Identifier: Apache-2.0
"""Heatmap and timeline as lines of text."""

from __future__ import annotations

import textwrap

import numpy as np
import numpy.typing as npt

from sentineld.base.units import format_bytes
from sentineld.model.profile import Profile
from sentineld.report.heatmap import Heatmap
from sentineld.report.labels import KINDS, Phase, phases, stretch_places
from sentineld.report.timeline import Timeline

DEAD, IDLE, UNKNOWN, SHADES, BARS = " ", "·", "?", "░▒▓█", "▁▂▃▄▅▆▇█"
HEATMAP_LEGEND = (
    "pages of a cell accessed: ░ up to a quarter, ▒ half, ▓ three quarters, █ all",
    "· live, not accessed; ? unknown, an access may have been missed; blank: no live tensor",
)
_LABEL_WIDTH = 16
_BAR_LABEL_WIDTH = 23


def heatmap_lines(heat: Heatmap, profile: Profile, width: int) -> list[str]:
    """Draw a heatmap: addresses downward, stretches from left to right. width: maximum length of
    the lines; the map has at least one column, however small the width is."""
    live, accessed, unknown, first = heat.columns(_columns(width, _LABEL_WIDTH))
    starts = np.append(first, profile.stretch_count)
    lines = [
        f"{'address':>{_LABEL_WIDTH}} ┌{_header(phases(profile), starts)}",
    ]
    for row in range(len(live)):
        shares = zip(live[row].tolist(), accessed[row].tolist(), unknown[row].tolist(), strict=True)
        cells = "".join(_cell(*share) for share in shares)
        lines.append(f"{heat.place(row):>{_LABEL_WIDTH}} │{cells}".rstrip())
    sampled = heat.source == "module"
    seen = f"source of accesses: {'sampled pages' if sampled else 'operators'}"
    return [*lines, *_wrapped([*HEATMAP_LEGEND, seen], width)]


def timeline_lines(line: Timeline, profile: Profile, width: int) -> list[str]:
    """Draw a bar chart for each kind that has live bytes, and one for all kinds together, each with
    its own scale. width: maximum length of the lines, as for heatmap_lines()."""
    binned = line.binned(_columns(width, _BAR_LABEL_WIDTH))
    times = np.cumsum(np.append(0, profile.stretches["time_ns"].astype(np.float64)))
    starts = np.searchsorted(times, binned.times_ns, side="right") - 1
    starts = np.append(np.minimum(starts, profile.stretch_count - 1), profile.stretch_count)
    lines = [
        f"{'live bytes':11} {'max':>11} ┌{_header(phases(profile), starts)}",
        *(
            _bars(kind, line.live[index], binned.live[index])
            for index, kind in enumerate(KINDS)
            if line.live[index].any()
        ),
        _bars("all", line.total, binned.total),
    ]
    at_ns = float(line.times_ns[line.peak])
    stretch = min(int(np.searchsorted(times, at_ns, side="right")) - 1, profile.stretch_count - 1)
    peak = (
        f"peak {format_bytes(int(line.total.max()))} after {at_ns / 1e6:.1f} ms of "
        f"{float(line.times_ns[-1]) / 1e6:.1f} ms, in: {stretch_places(profile)[stretch]}"
    )
    return [*lines, *_wrapped([peak], width)]


def _columns(width: int, label_width: int) -> int:
    """Number of columns to the right of the labels."""
    return max(width - label_width - 3, 1)


def _wrapped(lines: list[str], width: int) -> list[str]:
    """The lines, broken into lines of at most `width` characters."""
    return [part for line in lines for part in textwrap.wrap(line, max(width, 1))]


def _header(found: tuple[Phase, ...], starts: npt.NDArray[np.int64]) -> str:
    """A line of text with the name of each phase at the column where the phase begins.

    starts: the first stretch of each column, and the end (exclusive) of the last column.
    """
    columns = len(starts) - 1
    header = ["─"] * columns
    for phase in found:
        begin = int(np.searchsorted(starts[:-1], phase.first))
        end = int(np.searchsorted(starts[:-1], phase.past))
        if begin >= columns:
            continue
        text = f"┬{phase.name}" if begin else phase.name
        if len(text) > end - begin:
            text = text[: min(end - begin, 1)] if begin else ""
        header[begin : begin + len(text)] = text
    return "".join(header[:columns])


def _cell(live: float, accessed: float, unknown: float) -> str:
    if accessed > 0:
        return SHADES[min(int(np.ceil(accessed * len(SHADES))), len(SHADES)) - 1]
    if live > 0 and unknown > 0:
        return UNKNOWN
    return IDLE if live > 0 else DEAD


def _bars(name: str, values: npt.NDArray[np.int64], binned: npt.NDArray[np.int64]) -> str:
    most = int(values.max())
    heights = np.ceil(binned / max(most, 1) * len(BARS)).astype(np.int64)
    drawn = "".join(BARS[height - 1] if height else " " for height in heights.tolist())
    return f"{name:11} {format_bytes(most):>11} │{drawn}".rstrip()
