# SPDX-License-Identifier: Apache-2.0
"""Live bytes over a step."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sentineld.profile.trace import profile_of
from sentineld.report.labels import KINDS, label
from sentineld.report.timeline import event_times, timeline
from tests.unit.traces import recorded
from tests.unit.trainer import PAGE

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
    # Tensors that live across the step's end are live at the beginning and at the end.
    gradients = LINE.live[KINDS.index("gradient")]
    assert gradients[-1] == gradients[0] + 8 * PAGE  # the first event frees one gradient
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
