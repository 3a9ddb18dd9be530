# SPDX-License-Identifier: Apache-2.0
"""The steps that are recorded before the sampled one are consecutive: a step with gaps in its
allocations separates the steps before it from those after it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from sentineld.base.errors import SentinelError
from sentineld.config import Config, TierOverrides
from sentineld.machine.choose import substrate_of
from sentineld.machine.machine import Machine
from sentineld.model.protocol import Alloc, Event
from sentineld.profile.steps import Step
from sentineld.session.intake.inbox import Inbox
from sentineld.session.intake.sampling import Observing, Sampling
from sentineld.session.work.recording import Recording
from tests.unit.links import Linked
from tests.unit.session.work.test_profiling import SMALL, steps_of


def unavailable() -> Sampling:
    raise SentinelError("failed", "the kernel module is not loaded")


@pytest.fixture
def linked() -> Iterator[Linked]:
    made = Linked()
    yield made
    made.close()


def with_gap(step: Step) -> Step:
    """The step with a gap before its last allocation, whose cursor becomes one too large."""
    records = step.records
    allocs = np.flatnonzero((records["event"] == Event.ALLOC) & (records["detail"] == Alloc.STEP))
    records["value"][allocs[-1]] += 1
    return step


@pytest.mark.parametrize("missing", [False, True])
def test_a_step_with_gaps_interrupts_a_row_of_steps(linked: Linked, missing: bool) -> None:
    """missing: whether the step is missing altogether."""
    config = Config(tiers=TierOverrides(emulated="cxl"))
    substrate = substrate_of(config)
    machine = Machine(config, substrate, substrate.tiers(), [])
    inbox = Inbox(linked.link, Observing(linked.link, 1024))
    inbox.layers = ("",) * 32
    recording = Recording(linked.link, machine, None, unavailable, inbox, 2)
    steps = steps_of(SMALL, 4)
    for step in (steps[0], *([] if missing else [with_gap(steps[1])]), steps[2]):
        assert not recording.on_step(step)
        assert linked.shim.receive() == []
    assert not recording.on_step(steps[3])
    # Now two steps in a row are recorded, so the next step is sampled.
    assert "profile_ops" in [message["type"] for message in linked.shim.receive()]
    recording.finish()
