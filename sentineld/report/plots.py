# SPDX-License-Identifier: Apache-2.0
"""Heatmap and timeline as .png or .svg pictures, drawn by matplotlib."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from sentineld.base.errors import SentinelError
from sentineld.base.units import format_bytes
from sentineld.model.profile import Profile
from sentineld.report.heatmap import Heatmap
from sentineld.report.labels import KIND_COLOURS, KINDS, Phase, layer_runs, phases, stretch_places
from sentineld.report.timeline import Timeline

SUFFIXES = (".png", ".svg")
DPI = 120
LAYER_TICKS_MAX = 48
ADDRESS_TICKS = 10
TIMELINE_POINTS = 1500

_DEAD, _IDLE, _UNKNOWN = (1.0, 1.0, 1.0), (0.88, 0.91, 0.94), (0.80, 0.74, 0.90)
_ACCESSED_FROM = 0.3
"""Lowest colour used for accessed memory, as a position 0..1 in the colour map: a single accessed
page must differ visibly from idle memory."""


def require_picture(path: Path) -> None:
    """Check in advance that the file can be written, its name is valid and matplotlib is installed.
    Raises SentinelError."""
    if path.suffix not in SUFFIXES:
        raise SentinelError("usage", f"{path} is neither .png nor .svg", "use one of these")
    try:
        target = path if path.exists() else path.parent
        found = target.exists()
    except OSError as error:  # a name is too long, or a parent folder is not accessible
        raise SentinelError(
            "failed", f"can't write {path}: {error.strerror}", "name another file"
        ) from None
    if not found or not os.access(target, os.W_OK):
        reason = "is not writable" if found else "does not exist"
        raise SentinelError("failed", f"can't write {path}: {target} {reason}", "name another file")
    load_pyplot()


def draw_heatmap(heat: Heatmap, profile: Profile, title: str, path: Path) -> None:
    """Draw a heatmap: addresses downward, stretches from left to right. Raises SentinelError."""
    pyplot = load_pyplot()
    from matplotlib import cm, colors, patches

    rows, count = heat.live.shape
    scale = colors.LinearSegmentedColormap.from_list(
        "accessed", pyplot.get_cmap("OrRd")(np.linspace(_ACCESSED_FROM, 1.0, 256))
    )
    image = np.where(heat.live[..., None] > 0, np.array(_IDLE), np.array(_DEAD))
    image[(heat.live > 0) & (heat.unknown > 0)] = _UNKNOWN
    touched = heat.accessed > 0
    image[touched] = scale(heat.accessed[touched])[:, :3]

    figure, axes = pyplot.subplots(figsize=(13, 7.5), layout="constrained")
    axes.imshow(
        image, aspect="auto", interpolation="nearest", extent=(0, count, rows, 0), origin="upper"
    )
    for border in heat.axis.begins[1:].tolist():
        axes.axhline(np.searchsorted(heat.edges, border), color="black", linewidth=0.8)
    ticks = _address_ticks(heat)
    axes.set_yticks(list(ticks), list(ticks.values()))
    places = _layer_ticks(profile)
    axes.set_xticks(list(places), list(places.values()), rotation=90, fontsize=7)
    _mark_phases(axes, [(phase, phase.first, phase.past) for phase in phases(profile)], count)
    seen = "sampled pages" if heat.source == "module" else "pages that operators access"
    axes.set_ylabel("page address")
    axes.set_xlabel("layer, in step order")
    figure.suptitle(f"{title}: {seen}, address x layer")
    keys = [(_IDLE, "live, not accessed"), (_DEAD, "no live tensor")]
    if heat.unknown.any():
        keys.insert(1, (_UNKNOWN, "unknown: an access may have been missed"))
    axes.legend(
        handles=[patches.Patch(facecolor=c, edgecolor="grey", label=text) for c, text in keys],
        loc="lower right",
        bbox_to_anchor=(1.0, 1.025),
        ncols=len(keys),
        frameon=False,
        fontsize=8,
    )
    bar = figure.colorbar(
        cm.ScalarMappable(colors.Normalize(0, 100), scale), ax=axes, shrink=0.6, pad=0.01
    )
    bar.set_label("accessed pages, % of each cell")
    save_picture(figure, path)


def draw_timeline(line: Timeline, profile: Profile, title: str, path: Path) -> None:
    """Draw live bytes by kind, stacked, over the time of a step. Raises SentinelError."""
    pyplot = load_pyplot()
    binned = line.binned(TIMELINE_POINTS) if len(line.times_ns) > TIMELINE_POINTS else line
    end_ns = float(line.times_ns[-1])
    unit, unit_ns = ("s", 1e9) if end_ns >= 2e9 else ("ms", 1e6)
    size, size_bytes = ("GiB", 1 << 30) if line.total.max() >= 8 << 30 else ("MiB", 1 << 20)
    there = [index for index in range(len(KINDS)) if line.live[index].any()]

    figure, axes = pyplot.subplots(figsize=(12, 6), layout="constrained")
    times = np.append(binned.times_ns, end_ns) / unit_ns
    base = np.zeros(len(times))
    for index in there:
        values = np.append(binned.live[index], binned.live[index, -1]) / size_bytes
        name = f"{KINDS[index]}, max {format_bytes(int(line.live[index].max()))}"
        axes.fill_between(
            times,
            base,
            base + values,
            step="post",
            color=KIND_COLOURS[KINDS[index]],
            linewidth=0,
            label=name,
        )
        base = base + values
    peak_bytes = int(line.total.max())
    peak_at = float(line.times_ns[line.peak]) / unit_ns
    stretch_ends = np.cumsum(profile.stretches["time_ns"].astype(np.float64))
    stretch = min(
        int(np.searchsorted(stretch_ends, line.times_ns[line.peak], side="right")),
        profile.stretch_count - 1,
    )
    axes.axhline(peak_bytes / size_bytes, color="black", linewidth=0.8, linestyle=":")
    axes.annotate(
        f"peak {format_bytes(peak_bytes)}, in: {stretch_places(profile)[stretch]}",
        (peak_at, peak_bytes / size_bytes),
        xytext=(0, 5),
        textcoords="offset points",
        ha=_side(peak_at / max(end_ns / unit_ns, 1e-9)),
        fontsize=9,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
    )
    begins = np.concatenate([[0.0], stretch_ends]) / unit_ns
    spans = [
        (phase, float(begins[phase.first]), float(begins[phase.past])) for phase in phases(profile)
    ]
    axes.set_xlim(0, max(end_ns / unit_ns, 1e-9))
    axes.set_ylim(0, max(peak_bytes / size_bytes, 1e-9) * 1.1)
    _mark_phases(axes, spans, end_ns / unit_ns)
    axes.set_xlabel(f"time since step begin, {unit}")
    axes.set_ylabel(f"live tensor memory, {size}")
    figure.suptitle(f"{title}: live bytes by kind over one step")
    handles, names = axes.get_legend_handles_labels()
    # The legend has the order of the stack, from top to bottom.
    axes.legend(
        handles[::-1], names[::-1], loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False
    )
    save_picture(figure, path)


def load_pyplot() -> Any:
    """matplotlib's pyplot, for pictures in files. Raises SentinelError if it is not installed."""
    try:
        import matplotlib
    except ImportError:
        raise SentinelError(
            "failed",
            "drawing pictures needs matplotlib, which is not installed",
            "apt-get install python3-matplotlib, or pip install 'sentineld[plot]'",
        ) from None
    matplotlib.use("Agg")
    # Names of layers and files are drawn as they are, even if they contain "$".
    matplotlib.rcParams["text.parse_math"] = False
    from matplotlib import pyplot

    return pyplot


def save_picture(figure: Any, path: Path) -> None:
    """Write a figure to a file and close it. Raises SentinelError."""
    try:
        figure.savefig(path, dpi=DPI)
    except OSError as error:
        raise SentinelError(
            "failed", f"can't write {path}: {error.strerror or error}", "name another file"
        ) from None
    finally:
        load_pyplot().close(figure)


def _mark_phases(axes: Any, spans: list[tuple[Phase, float, float]], whole: float) -> None:
    """Mark the beginnings of phases with lines, and label the phases that are wide enough."""
    for phase, begin, end in spans:
        if begin > 0:
            axes.axvline(begin, color="black", linewidth=0.7, linestyle="--")
        if end - begin >= 0.07 * whole:
            axes.annotate(
                phase.name,
                ((begin + end) / 2, 1.0),
                xytext=(0, 4),
                xycoords=("data", "axes fraction"),
                textcoords="offset points",
                ha="center",
                fontsize=9,
            )


def _layer_ticks(profile: Profile) -> dict[float, str]:
    """Layer labels by position on the axis of stretches.

    Each run of stretches of the same layer and phase has a label, unless the stretches are in no
    layer. If there is no room for all labels, only every second, third, ... run is labelled.
    """
    named = [run for run in layer_runs(profile) if run.name]
    every = -(-len(named) // LAYER_TICKS_MAX)
    return {(run.first + run.past) / 2: run.name for run in named[:: max(every, 1)]}


def _address_ticks(heat: Heatmap) -> dict[int, str]:
    """Address labels by row: at the beginnings of ranges, and evenly spaced between them."""
    rows = len(heat.live)
    borders = np.searchsorted(heat.edges, heat.axis.begins).tolist()
    ticks: dict[int, str] = {}
    for row in [*borders, *range(0, rows, -(-rows // ADDRESS_TICKS))]:
        if row < rows and all(abs(row - other) > rows / (3 * ADDRESS_TICKS) for other in ticks):
            ticks[row] = heat.place(row)
    return ticks


def _side(share: float) -> str:
    """The horizontal alignment with which a text stays inside the picture. share: the text's
    horizontal position as a share of the picture's width."""
    if share < 0.3:
        return "left"
    return "right" if share > 0.7 else "center"
