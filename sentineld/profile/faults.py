# SPDX-License-Identifier: Apache-2.0
"""Page faults joined with tensors: what the memory of each costs before it can be used.

Faults are those of the recorded steps that ran at their own speed, in which
nothing was armed. A fault is one row where it begins, and one more where the
kernel finds that it is no simple one; the two are one fault here. The tensor is
the one that was alive at the address at that time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sentineld.model.arrays import Integers
from sentineld.model.kernel_events import FAULT_KINDS, FOUND_KINDS
from sentineld.model.records import Records
from sentineld.profile.circle import Circle, circle
from sentineld.profile.join import holders
from sentineld.profile.steps import Step, boundary_records
from sentineld.profile.trace import Trace

CLASSES = ("first_touch", "protection", "major", "hint", "in_motion")
"""A page's first use; a write to one that is mapped for reading; one that was on disk; one that
NUMA balancing unmapped to see who uses it; one that somebody was just moving."""

_CLASS_OF_KIND = {
    "missing_read": "first_touch",
    "missing_write": "first_touch",
    "protection_read": "protection",
    "protection_write": "protection",
    "instruction": None,  # no tensor's matter
    "major": "major",
    "hint": "hint",
    "in_motion": "in_motion",
}
_CLASSES_OF = (_CLASS_OF_KIND[kind] for kind in FAULT_KINDS)
_CLASS = np.array([-1 if name is None else CLASSES.index(name) for name in _CLASSES_OF])


@dataclass(frozen=True)
class TensorFaults:
    """Faults of one step, on average over some.

    by_tensor: faults of each class (columns: CLASSES) of the profile's tensors (rows).
    elsewhere: of each class, at addresses without a live tensor. steps: how many were recorded.
    """

    by_tensor: npt.NDArray[np.float64]
    elsewhere: npt.NDArray[np.float64]
    steps: int


def tensor_faults(trace: Trace) -> TensorFaults | None:
    """The faults of a trace's tensors; None if faults were not recorded. Raises SentinelError."""
    steps = trace.steps[:-1]
    if not trace.facts.get("faults_recorded") or not steps:
        return None
    profiled = circle(trace.access_step)
    counts = np.zeros((len(profiled.tensors) + 1, len(CLASSES)))
    address, time, kind = resolved(trace.faults, trace.page_bytes)
    for step in steps:
        begin = int(step.records["time_ns"][0])
        inside = (time >= begin) & (time < step.end_ns) & (kind >= 0)
        tensor = _tensors_at(step, address[inside], time[inside], trace.page_bytes, profiled)
        np.add.at(counts, (tensor, kind[inside]), 1)
    counts /= len(steps)
    return TensorFaults(counts[:-1], counts[-1], len(steps))


def resolved(faults: Records, page_bytes: int) -> tuple[Integers, Integers, Integers]:
    """Address, time in ns and class (index of CLASSES, -1: none) of each fault.

    faults: FAULT_DTYPE of one process, in any order. Rows of what the kernel
    found join the latest fault before them on the same page.
    """
    address, time = faults["address"].astype(np.int64), faults["time_ns"].astype(np.int64)
    page = address // page_bytes
    order = np.lexsort((time, page))
    found = np.isin(faults["kind"], FOUND_KINDS)[order]
    begins = ~found | (np.diff(page[order], prepend=-1) != 0)
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(order))[: len(first)] - 1
    kind = _CLASS[faults["kind"][order[last]]]
    return address[order[first]], time[order[first]], kind


def _tensors_at(
    step: Step, address: Integers, time: Integers, page_bytes: int, profiled: Circle
) -> Integers:
    """The profiled step's tensor at each address and time of a step like it; -1: none."""
    found = circle(step)
    begins = boundary_records(step)["time_ns"].astype(np.int64)
    stretch = np.maximum(np.searchsorted(begins, time, side="right") - 1, 0)
    row, instance = holders(found, stretch, address, time, page_bytes)
    result = np.full(len(address), -1)
    result[row] = _same(found, profiled)[found.instances["tensor"].astype(np.int64)[instance]]
    return result


def _same(found: Circle, profiled: Circle) -> Integers:
    """For each tensor of one circle that of the other: by its slot, or where it has none by its
    address, for it outlives the steps; -1: none."""
    same = np.full(len(found.tensors), -1)
    slots = min(found.slot_count, profiled.slot_count)
    same[:slots] = np.arange(slots)
    here = found.tensors["address"][found.slot_count :]
    there = profiled.tensors["address"][profiled.slot_count :]
    if len(there):
        place = np.minimum(np.searchsorted(there, here), len(there) - 1)
        known = np.where(there[place] == here, profiled.slot_count + place, -1)
        same[found.slot_count :] = known
    return same
