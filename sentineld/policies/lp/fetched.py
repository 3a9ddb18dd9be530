# SPDX-License-Identifier: Apache-2.0
"""Kept pages, in the linear program of a bound on paged tiers.

If a stretch uses slow pages, faults fetch the pages that it touches. In the simulator, these pages
then stay in fast memory if their promotion is queued and there is room, so no move reads them
again; see World.accessed() in simulate/world.py. These are the kept pages. The program has a column
for the kept pages of each change in a stretch that uses the group, except in the stretch of a
transient group's birth. (A change is a position after which the group may change its tier; see
Changes in problem.py.) Kept pages are a part of the pages that are promoted at the change, and at
most the touched share (Groups.touched) of the pages that are slow before it. They are fast from the
beginning of the stretch on, so they need room in the whole stretch, unlike other promoted pages.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sentineld.model.arrays import Floats, Integers
from sentineld.policies.lp.groups import Groups
from sentineld.policies.lp.options import Options
from sentineld.policies.lp.places import Places
from sentineld.policies.lp.pool import Entry
from sentineld.policies.lp.problem import UNIT_PAGES, Changes, following_segments


@dataclass(frozen=True)
class KeptColumns:
    """The K columns of kept pages. Column k belongs to entry k of each array."""

    group: Integers
    """(K,): the group."""

    position: Integers
    """(K,): the position in the group's lifetime."""


def kept_columns(groups: Groups, changes: Changes) -> KeptColumns:
    """The columns for all changes in stretches that use the group; none unless the groups are those
    of a bound on paged tiers."""
    found = [
        (group, position)
        for group, positions in enumerate(changes)
        for position in positions.tolist()
        if groups.touched[position, group] > 0
    ]
    table = np.array(found, dtype=np.int64).reshape(-1, 2)
    return KeptColumns(table[:, 0], table[:, 1])


def kept_rows(
    groups: Groups,
    columns: KeptColumns,
    places: Places,
    options: Options | None,
    column: int,
    row: int,
) -> tuple[list[Entry], Floats]:
    """Make the rows that limit the columns of kept pages.

    column: the first of these columns. row: the first new row. The first K new rows limit each
    column to the touched share of the slow pages, the next K rows to the promoted pages.

    Returns (entries, (2 * K,) the limits of the new rows, in UNIT_PAGES). Some of the entries
    subtract the kept pages from the moves of their stretch, and add them to the fast pages at its
    boundary and at its pressure points.
    """
    found: list[Entry] = []
    many = len(columns.group)
    most = np.zeros(2 * many)

    def add(rows: Integers | int, of: int, value: float) -> None:
        which = np.atleast_1d(np.asarray(rows, dtype=np.int64))
        found.append((which, np.full(len(which), of), value))

    for at, (group, position) in enumerate(
        zip(columns.group.tolist(), columns.position.tolist(), strict=True)
    ):
        segment, first = places.segments[group], places.first[group]
        following = following_segments(segment, bool(groups.persistent[group]))
        fast, later = first + int(segment[position]), first + int(following[position])
        stretch, kept = int(groups.stretches[group][position]), column + at
        point, lived = groups.lived_points[group]
        add(places.moving + stretch, kept, -1.0)
        add(places.boundaries + stretch, kept, 1.0)
        add(places.before + point[lived == position], kept, 1.0)
        add(places.after + point[lived == position], kept, 1.0)
        share = float(groups.touched[position, group])
        add(row + at, kept, 1.0)
        add(row + at, fast, share)
        most[at] = share * float(groups.pages[group]) / UNIT_PAGES
        if options is not None:
            for entry in np.flatnonzero(options.group == group).tolist():
                taken = places.taken + int(options.option[entry])
                add(row + at, taken, -share * float(options.pages[entry]) / UNIT_PAGES)
        # No page is demoted in a stretch that uses it, so the promoted part is the increase of the
        # fast part.
        add(row + many + at, kept, 1.0)
        add(row + many + at, fast, 1.0)
        add(row + many + at, later, -1.0)
    return found, most
