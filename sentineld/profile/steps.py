# SPDX-License-Identifier: Apache-2.0
"""Complete steps from the shim's ring, each with the tensors that are live when it begins."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sentineld.base.errors import SentinelError
from sentineld.model.protocol import NOT_IN_SEQUENCE, Alloc, Boundary, Event
from sentineld.model.records import Records

STEP_RECORDS_MAX = 1 << 19
"""Maximum number of records of a step, which take 16 MiB. A step of 100,000 tensors has up to
300,000 records: the list of live tensors, the births and the frees. A longer step is skipped: it
may have, for example, a validation pass before its end."""

LONG_STEPS_MAX = 4
"""Maximum number of steps in a row that are skipped because they are too long; one more is an
error."""

SKIPPED_RECORDS_MAX = 1 << 26
"""Maximum number of records of the steps that are skipped in a row. A validation pass of 1,000
records in each batch may have 67,000 batches. If there are more records, the training has probably
ended, and the process only computes without training."""

LIVE_MAX = 1 << 17
"""Maximum number of live tensors at one time; a LiveTable takes 250 bytes for each."""

WORK_MAX = 1 << 22
"""Maximum number of records and live tensors, together, in the steps that one call to steps()
yields. Processing this many takes about two seconds. Live tensors count because their table is
copied for each step, even for a step of one record."""


class LiveTensor(NamedTuple):
    """A live tensor."""

    bytes: int
    cursor: int | None  # allocation cursor; None: the allocation was not seen
    age: int  # number of steps begun since its allocation


class LiveTable:
    """The tensors that are live after the ring records processed so far, by address."""

    def __init__(self) -> None:
        self._entries: dict[int, LiveTensor] = {}

    def entries(self) -> dict[int, LiveTensor]:
        """A copy of the table."""
        return dict(self._entries)

    def begin_step(self, live: Records) -> None:
        """Begin a step.

        live: the step's ALLOC records with detail Alloc.LIVE, the complete list of live tensors. If
            there are none, the shim sent no list, and the table keeps the tensors that the
            allocations and frees in the ring imply.

        Raises SentinelError if there are more than LIVE_MAX live tensors.
        """
        aged = {
            a: LiveTensor(size, cursor, age + 1) for a, (size, cursor, age) in self._entries.items()
        }
        if len(live):
            listed = {}
            for address, size in zip(live["address"].tolist(), live["bytes"].tolist(), strict=True):
                known = aged.get(address)
                same = known is not None and known.bytes == size
                listed[address] = known if known is not None and same else LiveTensor(size, None, 1)
            aged = listed
        self._entries = aged
        self._require_limit()

    def fold(self, records: Records) -> None:
        """Apply the allocations and frees of a step, but not its list of live tensors.

        Raises SentinelError if there are more than LIVE_MAX live tensors.
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
                self._entries[address] = LiveTensor(
                    size, None if value == NOT_IN_SEQUENCE else value, 0
                )
        self._require_limit()

    def _require_limit(self) -> None:
        if len(self._entries) > LIVE_MAX:
            raise SentinelError(
                "failed",
                f"the process reports more than {LIVE_MAX} live tensors",
                "see docs/troubleshooting.md",
            )


@dataclass(frozen=True)
class Step:
    """One complete step."""

    records: Records  # from the step's STEP record to the next STEP record, exclusive
    number: int
    end_ns: int  # time at which the next step begins
    end_epoch: int  # epoch that begins with the next step; 0: none
    live: dict[int, LiveTensor]  # by address: the tensors that were live when the step began


class StepCutter:
    """Splits ring records into complete steps. Needs all records of the ring, in order."""

    def __init__(self) -> None:
        self._table = LiveTable()
        self._parts: list[Records] = []
        """The current step's records from its STEP record on; empty if this record was not seen."""
        self._gathered = 0
        # Number of steps skipped since the last complete step, and number of their records.
        self._long_steps = 0
        self._skipped = 0

    def feed(self, records: Records) -> list[Step]:
        """Add records and return the steps that they complete, oldest first; see steps()."""
        return list(self.steps(records))

    def steps(self, records: Records) -> Iterator[Step]:
        """Add records; yields the steps that they complete, oldest first. The caller must exhaust
        the iterator before adding more records. Steps beyond WORK_MAX, and steps of more than
        STEP_RECORDS_MAX records, are discarded as if their records were lost; see gap().

        Raises SentinelError if too many steps in a row are too long, or if there are too many live
        tensors.
        """
        begins = np.flatnonzero(records["event"] == Event.STEP).tolist()
        if not begins:
            self._gather(records)
            return
        self._gather(records[: begins[0]])
        whole = [np.concatenate(self._parts)] if self._parts else []
        whole += [records[a:b] for a, b in itertools.pairwise(begins)]
        afters = begins if self._parts else begins[1:]
        work = 0
        for part, at in zip(whole, afters, strict=True):
            step = self._cut(part, records[at])
            work += len(step.records) + len(step.live)
            if work > WORK_MAX:
                self.gap()
                return
            yield step
        self._forget()
        self._add(records[begins[-1] :])

    def gap(self) -> None:
        """Discard the current step and the table of live tensors, because records were lost. The
        next step begins with a list of the live tensors."""
        self._forget()
        self._table = LiveTable()

    def _gather(self, records: Records) -> None:
        if not self._parts:
            # These records belong to a step whose beginning was not seen or was discarded.
            if self._long_steps:
                self._skip(len(records))
            self._table.fold(records)
        elif len(records):
            self._add(records)

    def _add(self, records: Records) -> None:
        self._gathered += len(records)
        if self._gathered <= STEP_RECORDS_MAX:
            self._parts.append(records.copy())
            return
        gathered = self._gathered
        self.gap()
        self._long_steps += 1
        self._skip(gathered)

    def _skip(self, records: int) -> None:
        self._skipped += records
        if self._long_steps > LONG_STEPS_MAX or self._skipped > SKIPPED_RECORDS_MAX:
            raise SentinelError(
                "failed",
                f"a step of the process has more than {STEP_RECORDS_MAX} records",
                "see docs/troubleshooting.md",
            )

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
        self._long_steps = self._skipped = 0
        return step


def identical(one: Step, other: Step) -> bool:
    """Whether two steps have the same sequence of allocations, frees and boundaries.

    Compared: sizes, cursors, order, and the layers and kinds of boundaries. Not
    compared: addresses, times, and the frees of tensors born outside the step, because
    these births may not have been recorded.
    """
    left, right = _sequence(one), _sequence(other)
    return left.shape == right.shape and bool(np.all(left == right))


def sequence_digest(step: Step) -> str:
    """Hash of the step's sequence: steps that are identical() have the same hash."""
    return _digest(_sequence(step))


def structure_digest(step: Step) -> str:
    """Hash of the step's sequence without the sizes of allocations and without cuts."""
    sequence = structure(step)
    sequence[1] = 0
    return _digest(sequence)


def structure(step: Step) -> npt.NDArray[np.uint64]:
    """The step's sequence without cuts, (5, N): event, size, cursor, layer and kind of boundary.

    The size of a boundary is 0.
    """
    event, size, value, layer, detail = _sequence(step)
    is_boundary = event == Event.BOUNDARY
    cursor = np.where(is_boundary, size, value)
    size = np.where(is_boundary, 0, size)
    kept = ~(is_boundary & (detail == Boundary.CUT))
    return np.stack([event, size, cursor, layer, detail])[:, kept]


def _digest(sequence: npt.NDArray[np.uint64]) -> str:
    return hashlib.blake2b(np.ascontiguousarray(sequence).tobytes(), digest_size=16).hexdigest()


def kept_records(step: Step) -> int:
    """Approximate size of a stored step, as a number of records: the step's own records, and one
    for each live tensor, although a live tensor takes more memory than a record."""
    return len(step.records) + len(step.live)


def births(step: Step) -> npt.NDArray[np.uint64]:
    """Sizes of the allocations in the step's sequence, in order."""
    sizes: npt.NDArray[np.uint64] = allocation_records(step)["bytes"]
    return sizes


def allocation_records(step: Step) -> Records:
    """The records of the allocations in the step's sequence, in order."""
    records = step.records
    found: Records = records[(records["event"] == Event.ALLOC) & (records["detail"] == Alloc.STEP)]
    return found


def step_events(records: Records) -> npt.NDArray[np.bool_]:
    """Which records are events: allocations of the step's sequence, and all frees."""
    events: npt.NDArray[np.bool_] = (
        (records["event"] == Event.ALLOC) & (records["detail"] == Alloc.STEP)
    ) | (records["event"] == Event.FREE)
    return events


def cut_count(step: Step) -> int:
    """Number of boundaries at cuts of a layout."""
    records = step.records
    is_cut = (records["event"] == Event.BOUNDARY) & (records["detail"] == Boundary.CUT)
    return int(np.count_nonzero(is_cut))


def boundary_count(step: Step) -> int:
    """Number of boundaries, without cuts."""
    return len(boundary_records(step)) - cut_count(step)


def boundary_records(step: Step) -> Records:
    """One record per boundary. Boundary 0, at the step's beginning, is added if missing."""
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
