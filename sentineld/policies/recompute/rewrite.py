# SPDX-License-Identifier: Apache-2.0
"""The profile of a step that recomputes tensors, derived from the profile of a step that does not.

candidates.py defines a tensor's gap, in which the tensor is dropped, and the segment of layers that
is executed again. Each dropped tensor becomes two tensors. The first keeps the tensor's row in the
profile, and is freed at the end of the stretch of its last use before the gap. The second is born
at the beginning of the stretch in which the gap ends. In this stretch, all allocations and frees of
the segment happen again, before the stretch's own, and the segment's accesses are added to the
stretch's. So the stretch also needs room for the tensors that the segment uses internally, and the
segment's inputs cost time if they are slow. The time of the stretch grows by the time of the
segment.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sentineld.model.arrays import Integers, Table
from sentineld.model.profile import ACCESS_DTYPE, Kind, Profile
from sentineld.model.protocol import Placement
from sentineld.policies.recompute.candidates import Recomputation
from sentineld.profile.lifetimes import peak_bytes

DROP, AGAIN = 0, 1
"""Phases of an inserted event (see _Event). DROP: the event frees a dropped tensor just before the
boundary that begins _Event.stretch. AGAIN: the event belongs to a segment that is executed again,
and lies just after this boundary."""


@dataclass(frozen=True)
class _Event:
    """An inserted allocation or free."""

    stretch: int
    """DROP: the event lies just before this stretch. AGAIN: it lies in this stretch, before all of
    the stretch's own events."""
    phase: int
    row: int
    """The tensor, as a row of the new profile."""
    birth: bool


def recomputed(profile: Profile, chosen: Sequence[Recomputation]) -> Profile:
    """The profile of the step with these recomputations, which have to be compatible()."""
    if not chosen:
        return profile
    order = sorted(chosen, key=lambda one: (one.at, one.first))
    # For each dropped tensor: the stretch of its recomputation, and the row of the new profile that
    # stands for the tensor from this stretch on.
    later = {
        row: (one.at, len(profile.tensors) + number)
        for number, (one, row) in enumerate((one, row) for one in order for row, _ in one.dropped)
    }
    tensors = [profile.tensors, profile.tensors[list(later)]]
    inserted = [
        _Event(end + 1, DROP, row, birth=False) for one in order for row, end in one.dropped
    ]
    rows = [_moved(profile.accesses, later)]
    count = len(profile.tensors) + len(later)
    for one in order:
        made = _segment_tensors(profile, one)
        internal = [row for row in made if row not in one.tensors]
        copies = dict(zip(internal, range(count, count + len(internal)), strict=True))
        count += len(internal)
        again = profile.tensors[internal]
        # A script's placement of an internal tensor applies to the original only. Placed tensors
        # occupy memory during the whole step (plan/placement.py), but the copy lives only for a
        # short time, so it is planned like any other transient tensor.
        again["placed"] = Placement.AUTO
        tensors.append(again)
        inserted += _again(profile, one, copies, later)
        rows.append(_accesses_again(profile, one, copies, later))
    stretches = profile.stretches.copy()
    for one in order:
        stretches["time_ns"][one.at] += np.uint64(one.time_ns)
    table, stretches, events = _with_events(profile, np.concatenate(tensors), stretches, inserted)
    return replace(
        profile,
        tensors=table,
        accesses=_merged(np.concatenate(rows)),
        stretches=stretches,
        slot_count=profile.slot_count + sum(event.birth for event in inserted),
        event_count=events,
        peak_bytes=peak_bytes(table, events, profile.page_bytes),
    )


def halves(profile: Profile, chosen: Sequence[Recomputation]) -> tuple[Profile, Integers]:
    """The profile with rows added for both parts of every dropped tensor, before and after its gap.

    The tensors themselves stay as they are. So this is not the profile of a step, but it has the
    lifetimes and costs from which a linear program can choose. Its accesses are as in recomputed(),
    but without the second accesses to the segments' inputs and to the tensors that the segments use
    internally. The events keep their numbers.

    Returns the profile and (N, 3): rows of the tensor and of its two parts, in the order of
    `chosen` and of Recomputation.dropped.
    """
    parts = [(one, row, end) for one in chosen for row, end in one.dropped]
    own = np.array([row for _, row, _ in parts], dtype=np.int64)
    before, after = profile.tensors[own], profile.tensors[own]
    begins = np.append(profile.stretches["event"], profile.event_count)
    ends = np.array([end for _, _, end in parts], dtype=np.int64)
    starts = np.array([one.at for one, _, _ in parts], dtype=np.int64)
    before["death_stretch"], before["death_event"] = ends, begins[ends + 1]
    after["birth_stretch"], after["birth_event"] = starts, begins[starts]
    many = len(profile.tensors)
    first, second = many + np.arange(len(own)), many + len(own) + np.arange(len(own))
    rows = [profile.accesses]
    for (one, row, _), early, late in zip(parts, first.tolist(), second.tolist(), strict=True):
        accesses = profile.accesses[profile.accesses["tensor"] == row]
        rows.append(_moved(_with_tensor(accesses, early), {early: (one.at, late)}))
        inside = (accesses["stretch"] >= one.first) & (accesses["stretch"] <= one.last)
        again = _with_tensor(accesses[inside], late)
        again["stretch"] = one.at
        rows.append(again)
    found = replace(
        profile,
        tensors=np.concatenate([profile.tensors, before, after]),
        accesses=_merged(np.concatenate(rows)),
    )
    return found, np.stack([own, first, second], axis=1)


def inserted_events(profile: Profile, one: Recomputation) -> int:
    """Number of allocations and frees that a recomputation inserts after the boundary of its
    stretch."""
    made = _segment_tensors(profile, one)
    return 2 * len(made) - len(one.dropped)


def _segment_tensors(profile: Profile, one: Recomputation) -> list[int]:
    """The tensors that the segment makes, in the order of their births."""
    tensors = profile.tensors
    born = (tensors["slot"] >= 0) & (tensors["kind"] != Kind.PERSISTENT)
    inside = (tensors["birth_stretch"] >= one.first) & (tensors["birth_stretch"] <= one.last)
    rows = np.flatnonzero(born & inside)
    order: list[int] = rows[np.argsort(tensors["birth_event"][rows], kind="stable")].tolist()
    return order


def _again(
    profile: Profile,
    one: Recomputation,
    copies: dict[int, int],
    later: dict[int, tuple[int, int]],
) -> list[_Event]:
    """The events of a segment that is executed again, in order. Internal tensors whose originals
    outlive the segment are freed last."""
    tensors = profile.tensors
    timed: list[tuple[int, int, bool]] = []
    for row in _segment_tensors(profile, one):
        copy = copies[row] if row in copies else later[row][1]
        timed.append((int(tensors["birth_event"][row]), copy, True))
        if row in copies:
            inside = int(tensors["death_stretch"][row]) <= one.last
            death = int(tensors["death_event"][row]) if inside else profile.event_count
            timed.append((death, copy, False))
    return [_Event(one.at, AGAIN, row, birth) for _, row, birth in sorted(timed)]


def _accesses_again(
    profile: Profile,
    one: Recomputation,
    copies: dict[int, int],
    later: dict[int, tuple[int, int]],
) -> Table:
    rows = profile.accesses
    inside = (rows["stretch"] >= one.first) & (rows["stretch"] <= one.last)
    found = rows[inside]
    found["stretch"] = one.at
    made = [copies.get(row, row) for row in found["tensor"].tolist()]
    found["tensor"] = made
    return _moved(found, later)


def _moved(rows: Table, later: dict[int, tuple[int, int]]) -> Table:
    """A copy of the access rows in which the accesses to a dropped tensor after its recomputation
    name the tensor's second row. later: see recomputed()."""
    found = rows.copy()
    for row, (at, new) in later.items():
        found["tensor"][(rows["tensor"] == row) & (rows["stretch"] >= at)] = new
    return found


def _with_tensor(rows: Table, tensor: int) -> Table:
    found = rows.copy()
    found["tensor"] = tensor
    return found


def _merged(rows: Table) -> Table:
    """Merge the rows of each stretch and tensor into one row, and sort the rows. Bytes and accesses
    are summed; `pages` is the maximum."""
    rows = rows[np.lexsort((rows["tensor"], rows["stretch"]))]
    key = np.stack([rows["stretch"], rows["tensor"]], axis=1).astype(np.int64)
    begins = np.flatnonzero(np.any(np.diff(key, axis=0, prepend=-1) != 0, axis=1))
    found = np.zeros(len(begins), ACCESS_DTYPE)
    for name in ("stretch", "tensor"):
        found[name] = rows[name][begins]
    if len(begins):
        for name in ("bytes_read", "bytes_written", "page_accesses"):
            found[name] = np.add.reduceat(rows[name], begins)
        found["pages"] = np.maximum.reduceat(rows["pages"], begins)
    return found


def _with_events(
    profile: Profile,
    tensors: Table,
    stretches: Table,
    inserted: Sequence[_Event],
) -> tuple[Table, Table, int]:
    """Number the events anew; returns (tensors, stretches, number of events).

    tensors: the new profile's table of tensors, still with the lifetimes of the old profile.
    """
    begins = profile.stretches["event"].astype(np.int64)
    order = sorted(
        range(len(inserted)), key=lambda at: (inserted[at].stretch, inserted[at].phase, at)
    )
    listed = [inserted[at] for at in order]
    anchors = np.array([begins[event.stretch] for event in listed], dtype=np.int64)

    def renumbered(events: Integers) -> Integers:
        return events + np.searchsorted(anchors, events, side="right")

    table = tensors.copy()
    transient = table["kind"] != Kind.PERSISTENT
    events = profile.event_count + len(listed)
    birth = renumbered(tensors["birth_event"].astype(np.int64))
    table["birth_event"] = np.where(table["slot"] >= 0, birth, 0)
    death = renumbered(tensors["death_event"].astype(np.int64))
    table["death_event"] = np.where(transient, death, events)
    for number, event in enumerate(listed):
        end = "birth" if event.birth else "death"
        table[f"{end}_event"][event.row] = anchors[number] + number
        table[f"{end}_stretch"][event.row] = event.stretch - (event.phase == DROP)
    keys = [(event.stretch, event.phase) for event in listed]
    before = [bisect_left(keys, (stretch, AGAIN)) for stretch in range(len(stretches))]
    stretches["event"] = begins + np.array(before, dtype=np.int64)
    slotted = table["slot"] >= 0
    births = np.sort(table["birth_event"][slotted])
    table["slot"][slotted] = np.searchsorted(births, table["birth_event"][slotted])
    stretches["cursor"] = np.searchsorted(births, stretches["event"])
    within = transient & ~table["wraps"] & (table["birth_stretch"] == table["death_stretch"])
    changed = np.zeros(len(table), np.bool_)
    changed[[event.row for event in listed]] = True
    table["kind"][within & changed] = Kind.SCRATCH
    return table, stretches, events
