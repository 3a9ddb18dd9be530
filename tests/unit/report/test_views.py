# SPDX-License-Identifier: Apache-2.0
"""Timeline and heatmap: values, terminal output and pictures."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentineld.base.errors import SentinelError
from sentineld.model.records import ACCESS_UNKNOWN, OP_ACCESS_DTYPE, SAMPLE_DTYPE
from sentineld.profile.attribution import PAGE_BITS, sampled_pairs
from sentineld.profile.lifetimes import step_lifetimes
from sentineld.profile.trace import Trace, profile_of
from sentineld.report.heatmap import GAP_PAGES, heatmap
from sentineld.report.labels import KINDS, label
from sentineld.report.plots import draw_heatmap, draw_timeline, require_picture
from sentineld.report.terminal import heatmap_lines, timeline_lines
from sentineld.report.timeline import event_times, timeline
from tests.unit.traces import recorded
from tests.unit.trainer import HEAP, PAGE

TRACE = recorded()
PROFILE = profile_of(TRACE)
LABELS = label(TRACE, PROFILE)
LINE = timeline(PROFILE, LABELS)


def test_the_timeline_reaches_the_peak_and_wraps_around() -> None:
    assert LINE.total.max() == PROFILE.peak_bytes
    assert LINE.total[LINE.peak] == PROFILE.peak_bytes
    assert (LINE.live >= 0).all()
    parameters = LINE.live[KINDS.index("parameter")]
    assert (parameters == parameters[0]).all()
    # Tensors that live across the step's end are live at both ends.
    gradients = LINE.live[KINDS.index("gradient")]
    assert gradients[-1] == gradients[0] + 8 * PAGE  # the first event frees one
    assert gradients.min() == 0


def test_event_times_are_inside_their_stretches() -> None:
    times = event_times(PROFILE)
    assert len(times) == PROFILE.event_count + 1
    assert (np.diff(times) >= 0).all()
    ends = np.cumsum(PROFILE.stretches["time_ns"].astype(float))
    assert times[-1] == ends[-1]
    for stretch, event in enumerate(PROFILE.stretches["event"].tolist()):
        if event < PROFILE.event_count:
            begin = ends[stretch] - float(PROFILE.stretches["time_ns"][stretch])
            assert times[event] >= begin - 1


@given(st.integers(1, 400))
def test_binning_keeps_the_peak_and_the_sums(count: int) -> None:
    binned = LINE.binned(count)
    assert len(binned.times_ns) == count
    assert binned.total.max() == LINE.total.max()
    columns = {tuple(column) for column in LINE.live.T.tolist()}
    assert {tuple(column) for column in binned.live.T.tolist()} <= columns


@given(st.integers(1, 300))
def test_the_heatmap_counts_every_page_once(rows: int) -> None:
    heat = heatmap(TRACE, rows)
    sizes = np.diff(heat.edges)
    keys, _ = sampled_pairs(TRACE.access_step, TRACE.samples)
    pairs = np.bincount(keys >> PAGE_BITS, minlength=PROFILE.stretch_count)
    assert np.rint(heat.accessed * sizes[:, None]).sum(axis=0).tolist() == pairs.tolist()
    found = step_lifetimes(TRACE.access_step, TRACE.cuts)
    for stretch in (0, 7, PROFILE.stretch_count - 1):
        alive = found.instances[
            (found.instances["first_stretch"] <= stretch)
            & (found.instances["last_stretch"] >= stretch)
        ]
        pages: set[int] = set()
        for row in alive:
            first = int(row["address"]) // PAGE
            pages |= set(range(first, first + -(-int(row["bytes"]) // PAGE)))
        assert (heat.live[:, stretch] * sizes).sum() == pytest.approx(len(pages))
    assert heat.address(0) == HEAP
    assert (heat.accessed <= heat.live + 1e-9).all()


def without_samples() -> Trace:
    return replace(TRACE, samples=np.empty(0, SAMPLE_DTYPE))


def test_operators_accesses_are_shown_without_samples() -> None:
    sampled, by_operators = heatmap(TRACE, 60), heatmap(without_samples(), 60)
    # The toy trainer's operators access whole tensors.
    assert np.allclose(sampled.accessed, by_operators.accessed)
    assert (sampled.source, by_operators.source) == ("module", "shim")


def test_distant_memory_is_another_range_of_the_axis() -> None:
    samples = TRACE.samples.copy()
    samples["page"][-3:] = [7, 8, HEAP // PAGE + (1 << 20)]
    heat = heatmap(replace(TRACE, samples=samples), 50)
    assert len(heat.axis.first) == 3
    assert heat.axis.page(0) == 7
    assert heat.axis.pages < 3 * GAP_PAGES + 1000
    assert heat.accessed.sum() > 0
    assert heat.place(0) == "0x7000"


def test_addresses_are_relative_to_heap_and_arena() -> None:
    samples = TRACE.samples.copy()
    samples["page"][-1] = TRACE.arena[0] // PAGE + 3
    heat = heatmap(replace(TRACE, samples=samples), 10_000)
    places = [heat.place(row) for row in range(len(heat.live))]
    assert places[:2] == ["heap+0 B", "heap+4.0 KiB"]
    assert places[-1] == "arena+12.0 KiB"


def test_unknown_pages_are_never_shown_as_idle(tmp_path: Path) -> None:
    last = TRACE.samples["epoch"] == TRACE.access_step.end_epoch - 1
    samples = TRACE.samples[~last]
    unknown = samples[:1].copy()
    unknown["flags"] = ACCESS_UNKNOWN
    unknown["epoch"] = TRACE.access_step.end_epoch - 1
    unknown["page"] = HEAP // PAGE - 100
    unknown["more_pages"] = 60_000
    trace = replace(TRACE, samples=np.concatenate([samples, unknown]))
    heat = heatmap(trace, 20)
    assert (heat.unknown[:, -1] == 1).all()
    assert (heat.unknown[:, :-1] == 0).all()
    lines = [line for line in heatmap_lines(heat, PROFILE, 400) if "│" in line]
    alive = np.flatnonzero(heat.live[:, -1])
    assert len(alive) > 10
    assert all(lines[row].endswith("?") for row in alive.tolist())
    pytest.importorskip("matplotlib")
    draw_heatmap(heat, PROFILE, "a trace", tmp_path / "it.svg")
    assert "an access may have been missed" in (tmp_path / "it.svg").read_text()


def test_a_trace_without_any_access_has_an_empty_heatmap() -> None:
    heat = heatmap(replace(without_samples(), op_accesses=np.empty(0, OP_ACCESS_DTYPE)), 10)
    assert heat.accessed.sum() == 0
    assert heat.live.sum() > 0


@pytest.mark.parametrize("width", [20, 60, 100, 400])
def test_the_terminal_shows_the_whole_step(width: int) -> None:
    lines = heatmap_lines(heatmap(TRACE, 12), PROFILE, width)
    fields = [line.split("│")[1] for line in lines if "│" in line]
    assert len(fields) == 12
    assert all(len(line) <= max(width, 40) for line in lines[:-3])
    assert lines[1].split("│")[0].strip() == "heap+0 B"
    shown = set("".join(fields))
    assert shown <= set(" ·░▒▓█")
    assert {"·", "█"} <= shown or width < 60
    chart = timeline_lines(LINE, PROFILE, width)
    assert [line.split()[0] for line in chart[1:-2]] == [
        kind for index, kind in enumerate(KINDS) if LINE.live[index].any()
    ]
    assert all(len(line) <= max(width, 46) for line in chart[:-1])
    assert "peak" in chart[-1]
    if width >= 400:
        for text in (lines[0], chart[0]):
            assert "forward" in text
            assert "backward" in text
            assert "optimizer" in text


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


def test_problems_of_drawing_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SentinelError, match=r"neither \.png nor \.svg") as error:
        require_picture(tmp_path / "it.jpg")
    assert error.value.code == "usage"
    with pytest.raises(SentinelError, match="can't write"):
        draw_timeline(LINE, PROFILE, "a trace", tmp_path / "none" / "it.png")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SentinelError, match="python3-matplotlib"):
        require_picture(tmp_path / "it.png")
