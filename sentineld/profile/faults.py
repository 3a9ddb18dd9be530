# SPDX-License-Identifier: Apache-2.0
"""Page faults attributed to tensors.

The faults are those of the recorded steps before the access step. In these steps, no
pages were armed; armed pages would have caused further faults. Some faults have two
records: one is written when the fault begins, and the other while the kernel handles the fault.
This module merges the two records. A fault belongs to the tensor that was live at the fault's
address and time. If no tensor was live there, the fault belongs to a tensor that was at this
address at another time of the same stretch; see holders().
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sentineld.model.arrays import Integers
from sentineld.model.kernel_events import FAULT_KINDS, FOUND_KINDS
from sentineld.model.records import Records
from sentineld.profile.attribution import holders
from sentineld.profile.lifetimes import StepLifetimes, step_lifetimes
from sentineld.profile.steps import Step, boundary_records
from sentineld.profile.trace import Trace

CLASSES = ("first_touch", "protection", "major", "hint", "in_motion")
"""Classes of page faults. "first_touch": first access to an absent page. "protection": access that
the page's mapping does not permit, such as a write to a read-only page. "major": the page was in
swap. "hint": NUMA balancing had unmapped the page to see which node uses it. "in_motion": the page
was under migration."""

_CLASS_OF_KIND = {
    "missing_read": "first_touch",
    "missing_write": "first_touch",
    "protection_read": "protection",
    "protection_write": "protection",
    "instruction": None,  # code, not tensors
    "major": "major",
    "hint": "hint",
    "in_motion": "in_motion",
}
_CLASSES_OF = (_CLASS_OF_KIND[kind] for kind in FAULT_KINDS)
_CLASS = np.array([-1 if name is None else CLASSES.index(name) for name in _CLASSES_OF])


@dataclass(frozen=True)
class TensorFaults:
    """Faults per step, averaged over the recorded steps before the access step."""

    by_tensor: npt.NDArray[np.float64]  # by row of the profile's tensors and index in CLASSES
    elsewhere: npt.NDArray[np.float64]  # faults on no tensor of the profile, by index in CLASSES
    steps: int  # number of recorded steps before the access step


def tensor_faults(trace: Trace) -> TensorFaults | None:
    """The faults of a trace by tensor; None if faults were not recorded, or if the access step is
    the only step. Raises SentinelError."""
    steps = trace.steps[:-1]
    if not trace.facts.get("faults_recorded") or not steps:
        return None
    profiled = step_lifetimes(trace.access_step)
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
    """Merge fault records into faults: address, time in ns, class (index in CLASSES, -1: none).

    faults: FAULT_DTYPE; the records of one process, in any order. A record of FOUND_KINDS, written
    while the kernel handles a fault, is merged into the latest fault before it on the same page.
    """
    address, time = faults["address"].astype(np.int64), faults["time_ns"].astype(np.int64)
    page = address // page_bytes
    order = np.lexsort((time, page))
    found = np.isin(faults["kind"], FOUND_KINDS)[order]
    begins = ~found | (np.diff(page[order], prepend=-1) != 0)
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(order))[: len(first)] - 1
    first, last = order[first], order[last]
    kinds = faults["kind"][last]
    return address[first], time[first], _CLASS[kinds]


def _tensors_at(
    step: Step, address: Integers, time: Integers, page_bytes: int, profiled: StepLifetimes
) -> Integers:
    """The tensor at each address and time of `step` (see holders()): row in `profiled`, or -1."""
    found = step_lifetimes(step)
    begins = boundary_records(step)["time_ns"].astype(np.int64)
    stretch = np.maximum(np.searchsorted(begins, time, side="right") - 1, 0)
    row, instance = holders(found, stretch, address, time, page_bytes)
    result = np.full(len(address), -1)
    result[row] = _same(found, profiled)[found.instances["tensor"].astype(np.int64)[instance]]
    return result


def _same(found: StepLifetimes, profiled: StepLifetimes) -> Integers:
    """For each tensor of one step, its row in the profiled step; -1: none.

    Tensors are matched by slot. A tensor without a slot outlives the steps; it is matched by
    address.
    """
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
