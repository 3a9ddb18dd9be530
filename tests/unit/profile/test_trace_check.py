# SPDX-License-Identifier: Apache-2.0
"""problem_of() describes each kind of invalid value in a trace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from sentineld.model.kernel_events import FAULT_KINDS
from sentineld.model.protocol import Event
from sentineld.model.records import Records
from sentineld.profile.step_check import ADDRESS_MAX
from sentineld.profile.steps import LiveTensor, Step
from sentineld.profile.trace import Trace
from sentineld.profile.trace_check import PAGE_BYTES_MAX, problem_of
from tests.unit.traces import recorded

TRACE = recorded()
Change = Callable[[Trace], Trace]


def changed(table: Records, name: str, row: int, value: int) -> Records:
    copy = table.copy()
    copy[name][row] = value
    return copy


def step(which: int, change: Callable[[Step], Step]) -> Change:
    """Replace one of the trace's steps."""

    def apply(trace: Trace) -> Trace:
        steps = list(trace.steps)
        steps[which] = change(steps[which])
        return replace(trace, steps=tuple(steps))

    return apply


def test_a_recorded_trace_is_valid() -> None:
    assert problem_of(TRACE) == ""
    assert problem_of(replace(TRACE, page_bytes=PAGE_BYTES_MAX)) == ""


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda t: replace(t, steps=()), "it has no steps"),
        (lambda t: replace(t, page_bytes=0), "its page size is 0 bytes"),
        (lambda t: replace(t, page_bytes=4097), "its page size is 4097 bytes"),
        (lambda t: replace(t, page_bytes=2048), "its page size is 2048 bytes"),
        (lambda t: replace(t, page_bytes=2 * PAGE_BYTES_MAX), "its page size is 4194304 bytes"),
        (lambda t: replace(t, heap_base=-1), "its heap is outside the address space"),
        (lambda t: replace(t, heap_base=ADDRESS_MAX), "its heap is outside the address space"),
        (lambda t: replace(t, arena=(-1, 5)), "its arena is outside the address space"),
        (lambda t: replace(t, arena=(9, -5)), "its arena is outside the address space"),
        (lambda t: replace(t, arena=(9, ADDRESS_MAX)), "its arena is outside the address space"),
        (
            lambda t: replace(t, cuts=np.array([30, 20], np.uint32)),
            "its cuts are not ascending",
        ),
        (
            lambda t: replace(t, cuts=np.array([20, 20], np.uint32)),
            "its cuts are not ascending",
        ),
        (
            lambda t: replace(t, samples=changed(t.samples, "page", 7, 1 << 50)),
            "a sampled page is outside the address space",
        ),
        (
            # The record also represents the two pages that follow.
            lambda t: replace(
                t,
                samples=changed(
                    changed(t.samples, "page", 7, (ADDRESS_MAX >> 12) - 2), "more_pages", 7, 2
                ),
            ),
            "a sampled page is outside the address space",
        ),
        (
            lambda t: replace(t, op_accesses=changed(t.op_accesses, "bytes", 7, 1 << 63)),
            "an operator's access is outside the address space",
        ),
        (
            lambda t: replace(t, faults=changed(t.faults, "kind", 2, len(FAULT_KINDS))),
            "a page fault has an invalid address or kind",
        ),
        (
            lambda t: replace(t, faults=changed(t.faults, "address", 2, ADDRESS_MAX)),
            "a page fault has an invalid address or kind",
        ),
        (
            lambda t: replace(t, faults=changed(t.faults, "time_ns", 1, 1 << 63)),
            "a page fault has an impossible time",
        ),
        (step(1, lambda s: replace(s, end_ns=5)), "times of step 4 are not ascending"),
        (
            step(0, lambda s: replace(s, live={1 << 62: LiveTensor(8, None, 1)})),
            "a live tensor of step 3 is outside the address space",
        ),
        (
            step(2, lambda s: replace(s, records=changed(s.records, "event", 0, Event.ALLOC))),
            "step 5 does not begin with a step record",
        ),
    ],
)
def test_the_first_invalid_value_is_described(change: Change, problem: str) -> None:
    assert problem_of(change(TRACE)) == problem


@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_gap_in_any_step_is_found(which: int) -> None:
    def without_a_birth(one: Step) -> Step:
        births = np.flatnonzero(
            (one.records["event"] == Event.ALLOC) & (one.records["detail"] == 0)
        )
        return replace(one, records=np.delete(one.records, births[5]))

    number = TRACE.steps[which].number
    found = problem_of(step(which, without_a_birth)(TRACE))
    assert found == f"step {number} was not recorded completely"
