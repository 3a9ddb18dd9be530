# SPDX-License-Identifier: Apache-2.0
"""A plan assumes the times that stretches take if all pages are in fast memory, wherever the pages
were while the times were measured."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sentineld.config import Config
from sentineld.host.presets import preset_tiers
from sentineld.model.profile import Profile
from sentineld.model.timing import timing_of
from sentineld.session.live.shapes import Shapes
from tests.unit.session.work.test_profiling import CONFIG, SMALL, Profiled, steps_of
from tests.unit.workloads import train

FAST, SLOW = preset_tiers("cxl", 1).tiers
TIERS = replace(preset_tiers("cxl", 1), tiers=(replace(FAST, capacity_bytes=1 << 30), SLOW))
FAST_NODE, SLOW_NODE = 0, 1


def profile_with_pages_on(node: int, config: Config) -> Profile:
    """The profile from which a plan is made after a sampled step in which all pages were on this
    node."""
    profiled = Profiled(Shapes(), config=config, tiers=TIERS)
    assert profiled.tell(*steps_of(SMALL, 4)) is None
    layout, _ = profiled.asked()
    assert layout is not None
    cuts = tuple(layout.cuts.tolist())
    step, again = steps_of(SMALL, 2, cuts)
    trained = train(SMALL, 2, cuts)
    profiled.sampling.log = trained.take_samples()
    profiled.sampling.log["node"] = node
    profiled.answer(step, trained.take_ops())
    planned = profiled.tell(step)
    if planned is None:  # emulated tiers need the accesses of a second step
        profiled.answer(again, train(SMALL, 2, cuts).take_ops())
        planned = profiled.tell(again)
    profiled.close()
    assert planned is not None
    return planned.profile


def test_the_time_of_accesses_to_slow_nodes_is_subtracted() -> None:
    fast = profile_with_pages_on(FAST_NODE, Config())
    slow = profile_with_pages_on(SLOW_NODE, Config())
    assert np.array_equal(slow.accesses, fast.accesses)
    rows, extra_ns = fast.accesses["stretch"], timing_of(TIERS).extra_ns(fast)
    assert extra_ns.sum() > 0.05 * fast.stretches["time_ns"].sum()
    subtracted_ns = fast.stretches["time_ns"].astype(np.int64) - slow.stretches["time_ns"]
    expected_ns = np.bincount(rows, extra_ns, minlength=fast.stretch_count)
    assert subtracted_ns == pytest.approx(expected_ns, abs=1)


def test_the_times_on_emulated_tiers_do_not_depend_on_the_node() -> None:
    fast = profile_with_pages_on(FAST_NODE, CONFIG)
    slow = profile_with_pages_on(SLOW_NODE, CONFIG)
    assert np.array_equal(slow.stretches, fast.stretches)
