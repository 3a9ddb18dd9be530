# SPDX-License-Identifier: Apache-2.0
"""Whether what a trace says can be true: its steps, times, addresses and cuts."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sentineld.observe.model import Records
from sentineld.profile.steps import Step, boundary_records
from sentineld.profile.trace import Trace
from sentineld.shim.protocol import Alloc, Event

ADDRESS_MAX = 1 << 48
"""The profile's axis holds addresses up to here; user addresses on x86-64 end at 2^47."""

_I64_MAX = int(np.iinfo(np.int64).max)


def problem_of(trace: Trace) -> str:
    """The first thing that can't be true, for people; empty if all may be."""
    return next(_problems(trace), "")


def _problems(trace: Trace) -> Iterator[str]:
    if not trace.steps:
        yield "it holds no step"
        return
    page = trace.page_bytes
    if not 4096 <= page <= 1 << 21 or page & (page - 1):
        yield f"pages of {page} bytes"
        return
    if not 0 <= trace.heap_base < ADDRESS_MAX:
        yield "its heap lies outside of the address space"
    if not 0 <= trace.arena[0] <= trace.arena[0] + trace.arena[1] < ADDRESS_MAX:
        yield "its arena lies outside of the address space"
    for step in trace.steps:
        yield from _step_problems(step)
    epochs = boundary_records(trace.access_step)["address"]
    if len(trace.samples) and np.any(epochs[1:] < epochs[:-1]):
        yield "epochs of its access step run backwards"
    if np.any(epochs > _I64_MAX):
        yield "its access step has impossible epochs"
    if np.any(np.diff(trace.cuts.astype(np.int64)) <= 0):
        yield "its cuts do not rise"
    samples = trace.samples
    if np.any(samples["page"] >= np.uint64(ADDRESS_MAX // page) - samples["more_pages"]):
        yield "a sampled page lies outside of the address space"
    ops = trace.op_accesses
    if len(ops) and _outside(ops):
        yield "an operator's access lies outside of the address space"
    if np.any(ops["time_ns"] > _I64_MAX):
        yield "an operator's access has an impossible time"
    # A byte that is neither 0 nor 1 is a boolean for some of numpy and none for the rest.
    if np.any(ops["write"].view(np.uint8) > 1) or np.any(ops["estimated"].view(np.uint8) > 1):
        yield "an operator's access is neither read nor write"


def _outside(rows: Records) -> bool:
    size, address = rows["bytes"], rows["address"]
    return bool(np.any(size >= ADDRESS_MAX) or np.any(address >= ADDRESS_MAX - size))


def _step_problems(step: Step) -> Iterator[str]:
    records = step.records
    if not len(records) or records["event"][0] != Event.STEP:
        yield f"step {step.number} does not begin with its begin"
        return
    if np.count_nonzero(records["event"] == Event.STEP) != 1:
        yield f"step {step.number} is more than one step"
    boundaries = boundary_records(step)["time_ns"]
    times = np.concatenate([records["time_ns"][:1], boundaries, np.array([step.end_ns], np.uint64)])
    if int(times.max()) > _I64_MAX or step.end_epoch > _I64_MAX:
        yield f"step {step.number} has impossible times or epochs"
    if np.any(times[1:] < times[:-1]):
        yield f"times of step {step.number} run backwards"
    events = records[records["event"] <= Event.FREE]
    if np.any(events["time_ns"] > _I64_MAX):
        yield f"step {step.number} has impossible times"
    if _outside(events):
        yield f"a tensor of step {step.number} lies outside of the address space"
    allocs = records[(records["event"] == Event.ALLOC) & (records["detail"] == Alloc.STEP)]
    if not np.array_equal(allocs["value"], np.arange(len(allocs))):
        yield f"step {step.number} was not recorded whole"
    for address, live in step.live.items():
        if not 0 <= address < ADDRESS_MAX - live.bytes or live.bytes >= ADDRESS_MAX:
            yield f"a live tensor of step {step.number} lies outside of the address space"
            return
