# SPDX-License-Identifier: Apache-2.0
"""Validation of a trace: its steps, times, addresses and cuts."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sentineld.model.kernel_events import FAULT_KINDS
from sentineld.model.records import PAGE_BYTES
from sentineld.profile.step_check import (
    ADDRESS_MAX,
    I64_MAX,
    accesses_problem,
    recorded_completely,
    step_problem,
)
from sentineld.profile.trace import Trace

PAGE_BYTES_MAX = 1 << 21
"""Largest page size that is accepted: the size of a huge page on x86-64."""


def problem_of(trace: Trace) -> str:
    """Description of the first invalid value; empty if there is none."""
    return next(_problems(trace), "")


def _problems(trace: Trace) -> Iterator[str]:
    if not trace.steps:
        yield "it has no steps"
        return
    page = trace.page_bytes
    if not PAGE_BYTES <= page <= PAGE_BYTES_MAX or page & (page - 1):
        yield f"its page size is {page} bytes"
        return
    if not 0 <= trace.heap_base < ADDRESS_MAX:
        yield "its heap is outside the address space"
    if not 0 <= trace.arena[0] <= trace.arena[0] + trace.arena[1] < ADDRESS_MAX:
        yield "its arena is outside the address space"
    for step in trace.steps:
        if problem := step_problem(step):
            yield problem
        elif not recorded_completely(step):
            yield f"step {step.number} was not recorded completely"
    if np.any(np.diff(trace.cuts.astype(np.int64)) <= 0):
        yield "its cuts are not ascending"
    samples = trace.samples
    if np.any(samples["page"] >= np.uint64(ADDRESS_MAX // page) - samples["more_pages"]):
        yield "a sampled page is outside the address space"
    if problem := accesses_problem(trace.op_accesses):
        yield problem
    faults = trace.faults
    if np.any(faults["address"] >= ADDRESS_MAX) or np.any(faults["kind"] >= len(FAULT_KINDS)):
        yield "a page fault has an invalid address or kind"
    if np.any(faults["time_ns"] > I64_MAX):
        yield "a page fault has an impossible time"
