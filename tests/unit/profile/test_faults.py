# SPDX-License-Identifier: Apache-2.0
"""Attribution of page faults, compared with a walk through the step's records."""

from __future__ import annotations

import bisect
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentineld.model.kernel_events import FAULT_DTYPE, FAULT_KINDS, FOUND_KINDS
from sentineld.model.protocol import Alloc, Event
from sentineld.model.records import Records
from sentineld.profile.faults import CLASSES, resolved, tensor_faults
from sentineld.profile.lifetimes import step_lifetimes
from sentineld.profile.steps import Step, boundary_records
from sentineld.profile.trace import Trace
from tests.unit.traces import SMALL, recorded
from tests.unit.trainer import HEAP, PAGE
from tests.unit.workloads import train

TRACE = replace(recorded(), faults=np.zeros(0, FAULT_DTYPE))
STEPS = len(TRACE.steps) + 2
OPS = train(SMALL, STEPS, tuple(TRACE.cuts.tolist()), observed_steps=STEPS).take_ops()
"""The toy trainer's accesses in all steps. The tests place faults at or near their addresses."""

CLASS_OF = {"missing": "first_touch", "protection": "protection"}


def rows(*faults: tuple[int, int, str]) -> Records:
    """A table of FAULT_DTYPE from (time, address, kind)."""
    table = np.zeros(len(faults), FAULT_DTYPE)
    for row, (time_ns, address, kind) in zip(table, faults, strict=True):
        row["time_ns"], row["address"], row["kind"] = time_ns, address, FAULT_KINDS.index(kind)
    return table


@dataclass
class Life:
    """A tensor of a step. name: its slot number; for a persistent tensor, its address as text."""

    name: int | str
    start: int
    bytes: int
    born_ns: int
    dead_ns: float = math.inf


def lives(step: Step) -> list[Life]:
    """The tensors of a step, found by a walk through its records."""
    found = []
    for start, live in step.live.items():
        persistent = live.cursor is None or live.age > 1
        found.append(Life(str(start) if persistent else live.cursor, start, live.bytes, 0))
    for record in step.records:
        start, time_ns = int(record["address"]), int(record["time_ns"])
        if record["event"] == Event.FREE:
            for life in found:
                if life.start == start and life.dead_ns == math.inf:
                    life.dead_ns = time_ns
        elif record["event"] == Event.ALLOC and record["detail"] == Alloc.STEP:
            found.append(Life(int(record["value"]), start, int(record["bytes"]), time_ns))
    return found


def owner(step: Step, time_ns: int, address: int) -> int | str | None:
    """The name of the tensor that lives at this address at this time. If there is none, the name of
    the youngest tensor that lives there at any time of the stretch that contains this time. None if
    no tensor lives there in this stretch."""
    begins = [0, *boundary_records(step)["time_ns"].tolist(), step.end_ns]
    stretch = bisect.bisect_right(begins, time_ns)
    begin_ns, end_ns = begins[stretch - 1], begins[stretch]
    there = [one for one in lives(step) if one.start <= address < one.start + one.bytes]
    during = [one for one in there if one.born_ns < end_ns and one.dead_ns >= begin_ns]
    alive = [one for one in during if one.born_ns <= time_ns < one.dead_ns]
    return max(alive or during, key=lambda one: one.born_ns).name if during else None


def counted(trace: Trace) -> Iterator[tuple[int | str | None, str, float]]:
    """The result of tensor_faults() as (owner, class, faults in all steps together)."""
    found = tensor_faults(trace)
    assert found is not None
    tensors = step_lifetimes(trace.access_step).tensors
    names = [int(t["slot"]) if t["slot"] >= 0 else str(int(t["address"])) for t in tensors]
    for name, counts in [*zip(names, found.by_tensor, strict=True), (None, found.elsewhere)]:
        for kind, count in zip(CLASSES, counts.tolist(), strict=True):
            if count:
                yield name, kind, count * found.steps


@given(
    st.lists(
        st.tuples(
            st.integers(0, len(OPS) - 1),
            st.integers(-PAGE, 20 * PAGE),
            st.sampled_from([k for k in FAULT_KINDS if FAULT_KINDS.index(k) not in FOUND_KINDS]),
        ),
        max_size=60,
        unique_by=lambda fault: fault[0],
    )
)
def test_each_fault_belongs_to_the_tensor_live_at_its_address_and_time(
    drawn: list[tuple[int, int, str]],
) -> None:
    faults = [
        (int(OPS["time_ns"][op]), int(OPS["address"][op]) + offset, kind)
        for op, offset, kind in drawn
    ]
    expected: Counter[tuple[int | str | None, str]] = Counter()
    for step in TRACE.steps[:-1]:
        begin = int(step.records["time_ns"][0])
        for time_ns, address, kind in faults:
            if begin <= time_ns < step.end_ns and kind != "instruction":
                expected[owner(step, time_ns, address), CLASS_OF[kind.split("_")[0]]] += 1
    trace = replace(TRACE, faults=rows(*faults))
    assert {(name, kind): round(count) for name, kind, count in counted(trace)} == expected


def test_a_found_kind_replaces_the_fault_s_first_kind() -> None:
    page = HEAP + 7 * PAGE
    faults = rows(
        (10, page + 100, "missing_read"),
        (11, page, "hint"),
        (12, page + 200, "missing_write"),
        (13, HEAP, "missing_write"),
        (14, page, "in_motion"),
        (15, page + 300, "missing_write"),
        (16, HEAP, "missing_write"),
        (17, HEAP, "major"),
    )
    found = list(zip(*(column.tolist() for column in resolved(faults, PAGE)), strict=True))
    assert sorted(found, key=lambda fault: fault[1]) == [
        (page + 100, 10, CLASSES.index("hint")),
        (page + 200, 12, CLASSES.index("in_motion")),
        (HEAP, 13, CLASSES.index("first_touch")),
        (page + 300, 15, CLASSES.index("first_touch")),
        (HEAP, 16, CLASSES.index("major")),
    ]


def test_a_found_kind_without_a_first_record_counts() -> None:
    address, time, kind = resolved(rows((5, HEAP, "major")), PAGE)
    assert (address.tolist(), time.tolist(), kind.tolist()) == (
        [HEAP],
        [5],
        [CLASSES.index("major")],
    )


@given(st.permutations(list(range(8))))
def test_the_order_of_rows_does_not_matter(order: list[int]) -> None:
    faults = rows(
        *((time, HEAP + (time % 3) * PAGE, kind) for time, kind in enumerate(FAULT_KINDS))
    )
    left, right = resolved(faults, PAGE), resolved(faults[np.array(order)], PAGE)
    for one, other in zip(left, right, strict=True):
        assert np.array_equal(one, other)


def test_unrecorded_faults_are_not_reported_as_zero() -> None:
    assert tensor_faults(replace(TRACE, facts={})) is None
    none = tensor_faults(TRACE)
    assert none is not None
    assert not none.by_tensor.any()


@pytest.mark.parametrize("step", range(len(TRACE.steps)))
def test_faults_of_the_access_step_do_not_count(step: int) -> None:
    begin = int(TRACE.steps[step].records["time_ns"][0])
    found = list(counted(replace(TRACE, faults=rows((begin, HEAP, "missing_write")))))
    if step == len(TRACE.steps) - 1:
        assert found == []
    else:
        assert [(kind, count) for _, kind, count in found] == [("first_touch", 1.0)]
