# SPDX-License-Identifier: Apache-2.0
"""The tensors and stretches of one step, and the tensors' lifetimes in events and stretches.

Events are the allocations and frees of the step.
Steps repeat, so the step is cyclic: a tensor that is freed in the next step has a
lifetime that wraps around the step's end.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sentineld.base.errors import SentinelError
from sentineld.model.arrays import Integers, Table
from sentineld.model.profile import ACCESS_DTYPE, STRETCH_DTYPE, TENSOR_DTYPE, Kind, Profile
from sentineld.model.protocol import Boundary, Event
from sentineld.model.records import PAGE_BYTES, Records
from sentineld.profile.steps import Step, boundary_records, step_events

INSTANCE_DTYPE = np.dtype(
    [
        ("tensor", "<u4"),  # row in tensors
        ("address", "<u8"),
        ("bytes", "<u8"),
        ("first_stretch", "<u4"),
        ("last_stretch", "<u4"),  # inclusive, >= first_stretch
        ("born_ns", "<u8"),  # 0: before the step
        ("dead_ns", "<u8"),  # the largest 64-bit value: after the step
    ]
)
"""A tensor's memory during the step. A transient tensor that lives across the step's end has two
instances: the one born in the previous step and the one born in this step."""


@dataclass(frozen=True)
class StepLifetimes:
    """Tensors, stretches and lifetimes of one step."""

    tensors: Table  # TENSOR_DTYPE
    stretches: Table  # STRETCH_DTYPE
    instances: Table  # INSTANCE_DTYPE
    slot_count: int
    event_count: int

    @property
    def stretch_count(self) -> int:
        """Number of stretches."""
        return len(self.stretches)

    def profile(self, layers: Sequence[str], page_bytes: int, heap_base: int) -> Profile:
        """The profile of this step, without accesses."""
        return Profile(
            tensors=self.tensors,
            accesses=np.zeros(0, ACCESS_DTYPE),
            stretches=self.stretches,
            layers=tuple(layers),
            slot_count=self.slot_count,
            event_count=self.event_count,
            page_bytes=page_bytes,
            peak_bytes=peak_bytes(self.tensors, self.event_count, page_bytes),
            source="shim",
            unattributed_pages=0,
            heap_base=heap_base,
        )


def step_lifetimes(step: Step, cuts: Sequence[int] | npt.NDArray[np.uint32] = ()) -> StepLifetimes:
    """Find the lifetimes of a step's tensors.

    cuts: allocation cursors at which a layout had planned boundaries in this step.

    To find the death of a tensor that outlives the step, the tensor is matched with an instance
    that the previous step allocated and this step frees. If the previous step was recorded, the
    freed address leads to the previous step's allocation, whose slot identifies the tensor. If the
    previous step was not recorded, the tensors are taken in the order of their births, and the
    instances in the order of their frees. Each tensor is matched with the first unmatched instance
    of its size, provided that this step frees the instance before the tensor's birth. A tensor
    without a match lives longer than the duration of one step, so it gets no place in the arena.
    Its row has kind PERSISTENT and a slot, and the shim keeps the tensor in the heap.

    Raises SentinelError if allocations of the step are missing.
    """
    records = step.records
    stretches = _stretches(step, np.asarray(cuts, dtype=np.uint32))
    events = records[step_events(records)]
    allocs = np.flatnonzero(events["event"] == Event.ALLOC)
    slot_count = len(allocs)
    if not np.array_equal(events["value"][allocs], np.arange(slot_count)):
        raise SentinelError(
            "failed", f"step {step.number} was not recorded completely", "another one will be tried"
        )
    deaths, wrap_address = _deaths(step, events, allocs)
    persistent = _persistent(step, events)

    tensors = np.zeros(slot_count + len(persistent), TENSOR_DTYPE)
    planned = tensors[:slot_count]
    planned["slot"] = np.arange(slot_count)
    planned["bytes"] = events["bytes"][allocs]
    planned["address"] = events["address"][allocs]
    planned["birth_event"] = allocs
    outliving = deaths < 0
    planned["death_event"] = np.where(outliving, len(events), deaths)
    planned["wraps"] = ~outliving & (deaths <= allocs)
    at = _stretch_of(stretches, np.arange(len(events) + 1))
    planned["birth_stretch"] = at[allocs]
    planned["death_stretch"] = np.where(outliving, len(stretches) - 1, at[deaths])
    planned["kind"] = _kinds(planned, stretches)
    planned["kind"][outliving] = Kind.PERSISTENT

    rest = tensors[slot_count:]
    rest["slot"] = -1
    rest["kind"] = Kind.PERSISTENT
    rest["address"] = [address for address, _ in persistent]
    rest["bytes"] = [size for _, size in persistent]
    rest["death_event"] = len(events)
    rest["death_stretch"] = len(stretches) - 1
    return StepLifetimes(
        tensors=tensors,
        stretches=stretches,
        instances=_instances(tensors, stretches, events, deaths, wrap_address, step),
        slot_count=slot_count,
        event_count=len(events),
    )


def allocation_profile(
    step: Step,
    layers: Sequence[str],
    page_bytes: int = PAGE_BYTES,
    cuts: Sequence[int] | npt.NDArray[np.uint32] = (),
    heap_base: int = 0,
) -> Profile:
    """The profile of a step, made from ring records only; it has no accesses."""
    return step_lifetimes(step, cuts).profile(layers, page_bytes, heap_base)


def peak_bytes(tensors: Table, event_count: int, page_bytes: int) -> int:
    """Largest sum of the sizes of live tensors in a step, in bytes.

    Each size is rounded up to whole pages.
    """
    sizes = -(-tensors["bytes"].astype(np.int64) // page_bytes) * page_bytes
    change = np.zeros(event_count + 1, np.int64)
    transient = tensors["kind"] != Kind.PERSISTENT
    birth = np.where(transient, tensors["birth_event"], 0)
    death = np.where(transient, tensors["death_event"], event_count)
    np.add.at(change, birth, sizes)
    np.add.at(change, death, -sizes)
    wraps = transient & (death <= birth)
    always = int(sizes[wraps].sum())
    return always + int(np.cumsum(change)[: max(event_count, 1)].max())


def _stretches(step: Step, cuts: npt.NDArray[np.uint32]) -> Table:
    boundaries = boundary_records(step)
    where = np.flatnonzero(step.records["event"] == Event.BOUNDARY)
    if len(where) < len(boundaries):
        where = np.concatenate([[0], where])
    before = np.concatenate([[0], np.cumsum(step_events(step.records))])
    stretches = np.zeros(len(boundaries), STRETCH_DTYPE)
    stretches["cursor"] = boundaries["bytes"]
    stretches["event"] = before[where]
    stretches["layer"] = boundaries["layer"]
    stretches["kind"] = boundaries["detail"]
    stretches["cut"] = (boundaries["detail"] == Boundary.CUT) & np.isin(boundaries["bytes"], cuts)
    times = np.append(boundaries["time_ns"], np.uint64(step.end_ns)).astype(np.int64)
    stretches["time_ns"] = np.maximum(np.diff(times), 0)
    return stretches


def _stretch_of(stretches: Table, events: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The stretch of each event. Events before the first boundary, which only a corrupt ring has,
    belong to stretch 0."""
    found = np.searchsorted(stretches["event"], events, side="right") - 1
    return np.maximum(found, 0)


def _deaths(
    step: Step, events: Records, allocs: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64]]:
    """Find the event at which each slot's tensor dies.

    Returns two arrays with one entry per slot. The first has the event of the free, or -1 if the
    tensor lives longer than one step. The second has the address of the instance born in the
    previous step if the tensor lives across the step's end, else 0.
    """
    deaths = np.full(len(allocs), -1, np.int64)
    wrap_address = np.zeros(len(allocs), np.uint64)
    frees = np.flatnonzero(events["event"] == Event.FREE)
    cursors = events["value"][frees]
    known = cursors < len(allocs)
    deaths[cursors[known]] = frees[known]
    unknown: dict[int, deque[tuple[int, int]]] = defaultdict(deque)
    for event in frees[~known].tolist():
        address = int(events["address"][event])
        born = step.live.get(address)
        if born is None or born.age > 1:
            continue
        cursor = born.cursor
        if cursor is None:
            unknown[born.bytes].append((event, address))
        # If the previous step's tensor is freed only after this step has allocated the slot again
        # (as in `x = next(batches)`), the tensor lives longer than a step. So the slot's entry in
        # `deaths` stays -1.
        elif cursor < len(allocs) and deaths[cursor] < 0 and event < allocs[cursor]:
            deaths[cursor], wrap_address[cursor] = event, address
    sizes = events["bytes"][allocs]
    for slot in np.flatnonzero(deaths < 0).tolist():
        candidates = unknown.get(int(sizes[slot]))
        if candidates and candidates[0][0] < allocs[slot]:
            deaths[slot], wrap_address[slot] = candidates.popleft()
    return deaths, wrap_address


def _persistent(step: Step, events: Records) -> list[tuple[int, int]]:
    frees = events[events["event"] == Event.FREE]
    freed = set(frees["address"].tolist())
    return sorted(
        (address, live.bytes)
        for address, live in step.live.items()
        # A tensor that the previous step allocated and this step does not free is not persistent
        # state: this step allocates its slot again.
        if address not in freed and (live.cursor is None or live.age > 1)
    )


def _kinds(tensors: Table, stretches: Table) -> npt.NDArray[np.uint8]:
    """The kind of each tensor with a slot.

    Gradients are born in a backward pass and live into the next call of an optimizer, or into the
    next step. If the backward pass goes on after this call, they die before: tensors that live on
    are gradients of activations, which the rest of the pass uses.
    """
    kinds = np.full(len(tensors), Kind.ACTIVATION, np.uint8)
    optimizer = np.flatnonzero(stretches["kind"] == Boundary.OPTIMIZER)
    never = len(stretches)
    born, dead = tensors["birth_stretch"], tensors["death_stretch"]
    before = np.concatenate([[-1], optimizer])[np.searchsorted(optimizer, born, side="right")]
    begun = _following(stretches, Boundary.BACKWARD, before)
    used = _following(stretches, Boundary.OPTIMIZER, born)
    again = _following(stretches, Boundary.BACKWARD, used)
    # After a forward call, the next backward call is part of another pass.
    again[_following(stretches, Boundary.FORWARD, used) < again] = never
    into_optimizer = (used < never) & (tensors["wraps"] | ((dead >= used) & (dead < again)))
    kinds[(begun <= born) & into_optimizer] = Kind.GRADIENT
    within = tensors["birth_stretch"] == tensors["death_stretch"]
    kinds[within & ~tensors["wraps"]] = Kind.SCRATCH
    return kinds


def _following(stretches: Table, kind: Boundary, after: Integers) -> Integers:
    """The first stretch of a kind after each of these stretches; the number of stretches if there
    is none."""
    found = np.append(np.flatnonzero(stretches["kind"] == kind), len(stretches))
    following: Integers = found[np.searchsorted(found[:-1], after, side="right")]
    return following


def _instances(
    tensors: Table,
    stretches: Table,
    events: Records,
    deaths: npt.NDArray[np.int64],
    wrap_address: npt.NDArray[np.uint64],
    step: Step,
) -> Table:
    last = len(stretches) - 1
    never = np.uint64(np.iinfo(np.uint64).max)
    own = np.zeros(len(tensors), INSTANCE_DTYPE)
    own["tensor"] = np.arange(len(tensors))
    for name in ("address", "bytes"):
        own[name] = tensors[name]
    slotted = tensors["slot"] >= 0
    times = events["time_ns"]
    own["first_stretch"] = tensors["birth_stretch"]
    own["last_stretch"] = np.where(tensors["wraps"], last, tensors["death_stretch"])
    births = tensors["birth_event"][slotted]
    own["born_ns"][slotted] = times[births]
    own["dead_ns"] = never
    inside = np.flatnonzero(slotted & ~tensors["wraps"] & (tensors["kind"] != Kind.PERSISTENT))
    own["dead_ns"][inside] = times[deaths[inside]]

    wrapping = np.flatnonzero(wrap_address)
    before = np.zeros(len(wrapping), INSTANCE_DTYPE)
    before["tensor"] = wrapping
    before["address"] = wrap_address[wrapping]
    # The size can differ from that of the instance born in this step (see sizes.py).
    before["bytes"] = [step.live[address].bytes for address in wrap_address[wrapping].tolist()]
    before["last_stretch"] = tensors["death_stretch"][wrapping]
    before["dead_ns"] = times[deaths[wrapping]]
    # Leave out allocations with address 0: neither heap nor arena had room for them.
    own = own[own["address"] != 0]
    return np.concatenate([own, before])


def unplanned(tensors: Table) -> npt.NDArray[np.bool_]:
    """Which tensors have a slot but live longer than one step, so that they can't get a place in
    the arena."""
    found: npt.NDArray[np.bool_] = (tensors["slot"] >= 0) & (tensors["kind"] == Kind.PERSISTENT)
    return found
