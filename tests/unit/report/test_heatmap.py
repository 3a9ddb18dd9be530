# SPDX-License-Identifier: Apache-2.0
"""Live and accessed pages by address and stretch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentineld.model.records import ACCESS_UNKNOWN, OP_ACCESS_DTYPE, SAMPLE_DTYPE
from sentineld.profile.lifetimes import step_lifetimes
from sentineld.profile.sampled_pairs import PAGE_BITS, sampled_pairs
from sentineld.profile.trace import Trace, profile_of
from sentineld.report.heatmap import GAP_PAGES, heatmap
from sentineld.report.plots import draw_heatmap
from sentineld.report.terminal import heatmap_lines
from tests.unit.traces import recorded
from tests.unit.trainer import HEAP, PAGE

TRACE = recorded()
PROFILE = profile_of(TRACE)


@given(st.integers(1, 300))
def test_the_heatmap_counts_every_page_once(rows: int) -> None:
    heat = heatmap(TRACE, rows)
    sizes = np.diff(heat.edges)
    keys = sampled_pairs(TRACE.access_step, TRACE.samples).keys
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
