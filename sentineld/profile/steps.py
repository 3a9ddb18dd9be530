# SPDX-License-Identifier: Apache-2.0
"""Whole steps out of the shim's ring: cut, compare, and know what was live when they began."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sentineld.base.errors import SentinelError
from sentineld.model.protocol import NOT_IN_SEQUENCE, Alloc, Boundary, Event
from sentineld.model.records import Records

STEP_RECORDS_MAX = 1 << 21
"""Of one step; a hundred thousand tensors are born and freed in a tenth of that."""

LIVE_MAX = 1 << 20
"""Tensors at one time."""


class Live(NamedTuple):
    """A live tensor. cursor: of its allocation, None if not seen. age: steps begun since."""

    bytes: int
    cursor: int | None
    age: int


class LiveTable:
    """The tensors that are live at a point of the ring, by address."""

    def __init__(self, live: Iterable[tuple[int, int]] = ()) -> None:
        """live: (address, bytes) of tensors allocated before the ring began."""
        self._entries = {address: Live(size, None, 0) for address, size in live}

    def entries(self) -> dict[int, Live]:
        """A copy of the table."""
        return dict(self._entries)

    def begin_step(self, live: Records) -> None:
        """A step begins. live: its ALLOC records with detail Alloc.LIVE, the complete list of
        what is live then; empty: the shim gave no list, what the ring told so far holds."""
        aged = {a: Live(size, cursor, age + 1) for a, (size, cursor, age) in self._entries.items()}
        if len(live):
            listed = {}
            for address, size in zip(live["address"].tolist(), live["bytes"].tolist(), strict=True):
                known = aged.get(address)
                same = known is not None and known.bytes == size
                listed[address] = known if known is not None and same else Live(size, None, 1)
            aged = listed
        self._entries = aged

    def fold(self, records: Records) -> None:
        """Follow the allocations and frees of a step; lists of live tensors are passed over.

        Raises SentinelError for more live tensors than there can be.
        """
        changes = records[
            ((records["event"] == Event.ALLOC) & ~_is_live(records))
            | (records["event"] == Event.FREE)
        ]
        for address, size, value, event in zip(
            changes["address"].tolist(),
            changes["bytes"].tolist(),
            changes["value"].tolist(),
            changes["event"].tolist(),
            strict=True,
        ):
            if event == Event.FREE:
                self._entries.pop(address, None)
            elif address:
                self._entries[address] = Live(size, None if value == NOT_IN_SEQUENCE else value, 0)
        if len(self._entries) > LIVE_MAX:
            raise SentinelError(
                "failed",
                f"it says that more than {LIVE_MAX} tensors are live",
                "see docs/how-to.md, When something is wrong",
            )


@dataclass(frozen=True)
class Step:
    """One whole step: its records from STEP up to the next STEP, and what that one says.

    end_ns, end_epoch: time and epoch at which the next step begins; live: by
    address, the tensors that were live when the step began.
    """

    records: Records
    number: int
    end_ns: int
    end_epoch: int
    live: dict[int, Live]


class StepCutter:
    """Cuts ring records into whole steps. Feed it everything, in ring order."""

    def __init__(self, live: Iterable[tuple[int, int]] = ()) -> None:
        """live: (address, bytes) of tensors allocated before the ring began, if known."""
        self._table = LiveTable(live)
        self._parts: list[Records] = []
        """Of the step being gathered, from its STEP on; empty: its begin was not seen."""
        self._gathered = 0

    def feed(self, records: Records) -> list[Step]:
        """The steps that these records bring to an end, oldest first.

        Raises SentinelError for a step, or a table of live tensors, without an end.
        """
        begins = np.flatnonzero(records["event"] == Event.STEP).tolist()
        if not begins:
            self._gather(records)
            return []
        self._gather(records[: begins[0]])
        whole = [np.concatenate(self._parts)] if self._parts else []
        whole += [records[a:b] for a, b in itertools.pairwise(begins)]
        afters = begins if self._parts else begins[1:]
        steps = [self._cut(step, records[at]) for step, at in zip(whole, afters, strict=True)]
        self._forget()
        self._add(records[begins[-1] :])
        return steps

    def gap(self) -> None:
        """Records were lost: forget the step being gathered and what is thought to be live."""
        self._forget()
        self._table = LiveTable()

    def _gather(self, records: Records) -> None:
        if not self._parts:
            # The tail of a step whose begin was not seen.
            self._table.fold(records)
        elif len(records):
            self._add(records)

    def _add(self, records: Records) -> None:
        self._gathered += len(records)
        if self._gathered > STEP_RECORDS_MAX:
            raise SentinelError(
                "failed",
                f"a step of it has more than {STEP_RECORDS_MAX} records",
                "see docs/how-to.md, When something is wrong",
            )
        self._parts.append(records.copy())

    def _forget(self) -> None:
        self._parts.clear()
        self._gathered = 0

    def _cut(self, records: Records, after: np.void) -> Step:
        live = records[(records["event"] == Event.ALLOC) & _is_live(records)]
        self._table.begin_step(live)
        step = Step(
            records=records.copy(),
            number=int(records["bytes"][0]),
            end_ns=int(after["time_ns"]),
            end_epoch=int(after["address"]),
            live=self._table.entries(),
        )
        self._table.fold(records)
        return step


def identical(one: Step, other: Step) -> bool:
    """Whether two steps allocate, free and pass boundaries in the same sequence.

    Compared: sizes, cursors, order, layers and kinds of boundaries. Not
    compared: addresses, times, and the frees of tensors born outside the step
    (whose birth may have gone unrecorded).
    """
    left, right = _sequence(one), _sequence(other)
    return left.shape == right.shape and bool(np.all(left == right))


def sequence_digest(step: Step) -> str:
    """A name for the step's sequence: the same for identical() steps, and for no others."""
    sequence = np.ascontiguousarray(_sequence(step))
    return hashlib.blake2b(sequence.tobytes(), digest_size=16).hexdigest()


def births(step: Step) -> npt.NDArray[np.uint64]:
    """Sizes of the step's own allocations, in order."""
    records = step.records
    own = (records["event"] == Event.ALLOC) & (records["detail"] == Alloc.STEP)
    sizes: npt.NDArray[np.uint64] = records["bytes"][own]
    return sizes


def step_events(records: Records) -> npt.NDArray[np.bool_]:
    """Which records are events of the step: allocations of its sequence, and all frees."""
    events: npt.NDArray[np.bool_] = (
        (records["event"] == Event.ALLOC) & (records["detail"] == Alloc.STEP)
    ) | (records["event"] == Event.FREE)
    return events


def cut_count(step: Step) -> int:
    """Boundaries of the step at a cut of its layout."""
    records = step.records
    is_cut = (records["event"] == Event.BOUNDARY) & (records["detail"] == Boundary.CUT)
    return int(np.count_nonzero(is_cut))


def boundary_records(step: Step) -> Records:
    """One record a boundary; boundary 0 is the step's begin, recorded as such or not."""
    records = step.records
    boundaries = records[records["event"] == Event.BOUNDARY].copy()
    if len(boundaries) and boundaries["value"][0] == 0:
        if not boundaries["address"][0]:
            boundaries["address"][0] = records["address"][0]
        whole: Records = boundaries
        return whole
    begin = records[:1].copy()
    begin["event"] = Event.BOUNDARY
    begin["detail"] = Boundary.STEP
    begin["bytes"] = 0
    whole = np.concatenate([begin, boundaries])
    return whole


def _is_live(records: Records) -> npt.NDArray[np.bool_]:
    live: npt.NDArray[np.bool_] = records["detail"] == Alloc.LIVE
    return live


def _sequence(step: Step) -> npt.NDArray[np.uint64]:
    records = step.records
    alloc = (records["event"] == Event.ALLOC) & (records["detail"] == Alloc.STEP)
    free = (records["event"] == Event.FREE) & (records["value"] != NOT_IN_SEQUENCE)
    boundary = records["event"] == Event.BOUNDARY
    kept = records[alloc | free | boundary]
    columns = [kept[name].astype(np.uint64) for name in ("event", "bytes", "value")]
    is_boundary = kept["event"] == Event.BOUNDARY
    columns += [
        np.where(is_boundary, kept[name], 0).astype(np.uint64) for name in ("layer", "detail")
    ]
    return np.stack(columns)
