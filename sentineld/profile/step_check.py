# SPDX-License-Identifier: Apache-2.0
"""Validation of the records of a step: times, epochs and addresses.

The ring is memory of the traced process, and a trace file may come from anywhere, so both
are untrusted. Records that pass are safe to compute with, but not necessarily true.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sentineld.model.protocol import Event
from sentineld.model.records import Records
from sentineld.profile.steps import Step, allocation_records, boundary_records

ADDRESS_MAX = 1 << 48
"""attribution.py can handle only addresses below this one. User addresses on x86-64 are below 2^47,
except with five-level page tables."""

I64_MAX = int(np.iinfo(np.int64).max)


def step_problem(step: Step) -> str:
    """Description of the first invalid value in a step; empty if there is none."""
    return next(_step_problems(step), "")


def accesses_problem(ops: Records) -> str:
    """Description of the first invalid value in OP_ACCESS_DTYPE rows; empty if there is none."""
    return next(_accesses_problems(ops), "")


def recorded_completely(step: Step) -> bool:
    """Whether the step's sequence of allocations has no gaps."""
    allocs = allocation_records(step)
    return bool(np.array_equal(allocs["value"], np.arange(len(allocs))))


def _step_problems(step: Step) -> Iterator[str]:
    records = step.records
    if not len(records) or records["event"][0] != Event.STEP:
        yield f"step {step.number} does not begin with a step record"
        return
    if np.count_nonzero(records["event"] == Event.STEP) != 1:
        yield f"step {step.number} has several step records"
    boundaries = boundary_records(step)
    ends = np.array([step.end_ns], np.uint64)
    times = np.concatenate([records["time_ns"][:1], boundaries["time_ns"], ends])
    epochs = boundaries["address"][boundaries["address"] != 0]
    if int(times.max()) > I64_MAX or np.any(epochs > I64_MAX) or step.end_epoch > I64_MAX:
        yield f"step {step.number} has impossible times or epochs"
    if np.any(times[1:] < times[:-1]):
        yield f"times of step {step.number} are not ascending"
    if np.any(epochs[1:] < epochs[:-1]):
        yield f"epochs of step {step.number} are not ascending"
    cursors = boundaries["bytes"]
    if np.any(cursors[1:] < cursors[:-1]) or int(cursors[-1]) > len(records):
        yield f"boundaries of step {step.number} have impossible cursors"
    events = records[(records["event"] == Event.ALLOC) | (records["event"] == Event.FREE)]
    if np.any(events["time_ns"] > I64_MAX):
        yield f"step {step.number} has impossible times"
    if _outside(events):
        yield f"a tensor of step {step.number} is outside the address space"
    # Sums of sizes must fit in 64 bits.
    if float(events["bytes"].sum(dtype=np.float64)) > I64_MAX / 2:
        yield f"tensors of step {step.number} have impossible sizes"
    for address, live in step.live.items():
        if not 0 <= address < ADDRESS_MAX - live.bytes or live.bytes >= ADDRESS_MAX:
            yield f"a live tensor of step {step.number} is outside the address space"
            return


def _accesses_problems(ops: Records) -> Iterator[str]:
    if len(ops) and _outside(ops):
        yield "an operator's access is outside the address space"
    if np.any(ops["time_ns"] > I64_MAX):
        yield "an operator's access has an impossible time"
    # numpy is inconsistent about booleans whose byte is neither 0 nor 1.
    if np.any(ops["write"].view(np.uint8) > 1) or np.any(ops["estimated"].view(np.uint8) > 1):
        yield "an operator's access has an invalid boolean"


def _outside(rows: Records) -> bool:
    size, address = rows["bytes"], rows["address"]
    return bool(np.any(size >= ADDRESS_MAX) or np.any(address >= ADDRESS_MAX - size))
