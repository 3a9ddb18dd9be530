# SPDX-License-Identifier: Apache-2.0
"""The steps that are recorded before the sampled one are consecutive: a step with gaps in its
allocations separates the steps before it from those after it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest

from sentineld.base.errors import SentinelError
from sentineld.config import Config, TierOverrides
from sentineld.machine.choose import substrate_of
from sentineld.machine.machine import Machine
from sentineld.model.protocol import Alloc, Event
from sentineld.model.records import OP_ACCESS_DTYPE, OpAccesses
from sentineld.observe.shim_link import OP_ACCESSES_MAX
from sentineld.plan.layout_wire import unpack_layout
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


def recording_of(linked: Linked) -> Recording:
    """A recording of two steps."""
    config = Config(tiers=TierOverrides(emulated="cxl"))
    substrate = substrate_of(config)
    machine = Machine(config, substrate, substrate.tiers(), [])
    inbox = Inbox(linked.link, Observing(linked.link, 1024))
    inbox.layers = ("",) * 32
    return Recording(linked.link, machine, None, unavailable, inbox, 2)


def with_gap(step: Step) -> Step:
    """The step with a gap before its last allocation, whose cursor becomes one too large."""
    records = step.records
    allocs = np.flatnonzero((records["event"] == Event.ALLOC) & (records["detail"] == Alloc.STEP))
    records["value"][allocs[-1]] += 1
    return step


@pytest.mark.parametrize("missing", [False, True])
def test_a_step_with_gaps_interrupts_a_row_of_steps(linked: Linked, missing: bool) -> None:
    """missing: whether the step is missing altogether."""
    recording = recording_of(linked)
    steps = steps_of(SMALL, 4)
    for step in (steps[0], *([] if missing else [with_gap(steps[1])]), steps[2]):
        assert not recording.on_step(step)
        assert linked.shim.receive() == []
    assert not recording.on_step(steps[3])
    # Now two steps in a row are recorded, so the next step is sampled.
    assert "profile_ops" in [message["type"] for message in linked.shim.receive()]
    recording.finish()


def test_a_trace_says_that_accesses_are_missing_because_there_are_too_many(linked: Linked) -> None:
    recording = recording_of(linked)
    for step in steps_of(SMALL, 2):
        assert not recording.on_step(step)
    linked.shim.receive()
    (fd,) = linked.shim.take_fds(1)
    with os.fdopen(fd, "rb") as file:
        file.seek(0)
        cuts = tuple(unpack_layout(file.read()).cuts.tolist())
    (step,) = steps_of(SMALL, 1, cuts)
    no_rows = np.empty(0, OP_ACCESS_DTYPE)
    recording.on_op_accesses(OpAccesses(step.number, no_rows, refused=OP_ACCESSES_MAX + 1))
    assert recording.on_step(step)
    recording.finish()
    trace = recording.wait()
    assert not len(trace.op_accesses)
    assert f"the limit is {OP_ACCESSES_MAX}" in str(trace.facts)
