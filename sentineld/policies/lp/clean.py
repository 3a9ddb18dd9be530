# SPDX-License-Identifier: Apache-2.0
"""Clean pages in the linear program, on paged tiers.

A page that was fetched from the file and has not been written since is clean: its demotion takes no
time. A stretch that writes to a group makes all pages of the group dirty. A position is a stretch
of a group's lifetime, numbered from the birth. A change is a position after which the group may
change its tier; a segment is the part of the lifetime between two changes. Pages are promoted and
demoted only between segments, so pages to which a stretch writes are still dirty at the end of its
segment. The program therefore counts clean pages only in segments in which no stretch writes to the
group.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from sentineld.model.arrays import Floats, Integers, Mask
from sentineld.policies.lp.groups import Groups
from sentineld.policies.lp.places import Places
from sentineld.policies.lp.pool import Entry
from sentineld.policies.lp.problem import Changes, Limits, following_segments


class CleanChange(NamedTuple):
    """A change (see the module's docstring) that ends or precedes a segment with clean pages."""

    change: int
    """Index of the change in the group's list of changes."""

    before: int | None
    """Number of the segment that ends with the change; None if its pages cannot be clean."""

    demotes: bool
    """Whether clean pages can be demoted at the change."""

    after: int | None
    """Number of the segment that begins after the change; None if its pages cannot be clean."""

    fetches_clean: bool
    """Whether pages that are promoted at the change are clean."""


@dataclass
class GroupColumns:
    """The columns of a group's clean pages."""

    segments: dict[int, int] = field(default_factory=dict)
    """For each segment in which pages can be clean, the column of the clean pages."""

    changes: list[CleanChange] = field(default_factory=list)

    demoted: dict[int, int] = field(default_factory=dict)
    """For each change at which clean pages can be demoted, the column of the clean pages that the
    change demotes."""

    dying: int | None = None
    """The column of the clean pages that are demoted in the stretch of the group's death; None: no
    such column."""


@dataclass(frozen=True)
class CleanColumns:
    """The columns of all groups' clean pages."""

    of_groups: tuple[GroupColumns, ...]
    count: int


def clean_columns(
    groups: Groups,
    changes: Changes,
    segments: list[Integers],
    which: Mask,
    dying: set[int],
    first: int,
) -> CleanColumns:
    """Assign numbers to the columns of clean pages.

    segments: for each group, the segment of each position of its lifetime.
    which: (G,): the groups that may get columns, if the tiers are paged.
    dying: the groups that may be demoted in the stretch of their death.
    first: number of the first column.
    """
    if not groups.paged or not which.any():
        return CleanColumns((), 0)
    found: list[GroupColumns] = []
    column = first
    for at, segment in enumerate(segments):
        length, lasts = len(segment), bool(groups.persistent[at])
        writes, used = groups.writes[:length, at], groups.used[:length, at]
        clean = clean_segments(segment, writes, lasts)
        # Clean pages save time only if they can be demoted after a use. `kept`: the segments that
        # can have clean pages and at whose end pages may be demoted.
        stays = groups.stays[:length, at]
        dies = at in dying and not bool(stays[-1])
        kept = clean if lasts or dies else clean[clean < int(segment[-1])]
        of = GroupColumns()
        found.append(of)
        if not which[at] or not used[np.isin(segment, kept)].any():
            continue
        for one in clean.tolist():
            of.segments[one] = column
            column += 1
        following = following_segments(segment, lasts)
        of.changes = _clean_changes(
            changes[at], segment, following, writes, stays, set(of.segments)
        )
        for change in of.changes:
            if change.demotes:
                of.demoted[change.change] = column
                column += 1
        if dies and int(segment[-1]) in of.segments:
            of.dying = column
            column += 1
    return CleanColumns(tuple(found), column - first)


def clean_segments(segment: Integers, writes: Mask, persistent: bool) -> Integers:
    """The segments of a group in which pages can be clean, ascending.

    segment: (L,): the segment of each position of the group's lifetime.
    writes: (L,): whether each position writes to the group.
    """
    written = np.bincount(segment, writes, minlength=int(segment.max()) + 1) > 0
    if not persistent:
        written[0] = True  # the pages of a newborn tensor are dirty
    if len(written) == 1:
        written[0] = True  # with a single segment, no page changes its tier
    found: Integers = np.flatnonzero(~written)
    return found


def _clean_changes(
    positions: Integers,
    segment: Integers,
    following: Integers,
    writes: Mask,
    stays: Mask,
    clean: set[int],
) -> list[CleanChange]:
    """The changes that end or precede a segment with clean pages.

    positions: the positions of the group's changes.
    following: (L,): the segment after each position's moves.
    stays: (L,): at which positions no page can be demoted.
    clean: the segments with clean pages.
    """
    found = []
    for change, position in enumerate(positions.tolist()):
        before, after = int(segment[position]), int(following[position])
        if before in clean or after in clean:
            found.append(
                CleanChange(
                    change,
                    before if before in clean else None,
                    before in clean and not bool(stays[position]),
                    after if after in clean else None,
                    not bool(writes[position]),
                )
            )
    return found


def clean_rows(
    groups: Groups, columns: CleanColumns, places: Places, limits: Limits, row: int
) -> tuple[list[Entry], int]:
    """Make the rows that limit the columns of clean pages. The sum of each new row has to be at
    most 0. Returns (entries, the first row after the new rows).

    The demotion of a clean page takes no time. Some entries therefore subtract these demotions from
    the rows that limit moves. In a generous program (see Limits), other entries subtract the
    demoted clean pages from the rows that begin at Places.after, too, because a demoted clean page
    frees its room immediately.

    row: the first new row.
    """
    found: list[Entry] = []

    def add(*entries: tuple[int, float]) -> None:
        nonlocal row
        for column, value in entries:
            found.append((np.array([row]), np.array([column]), value))
        row += 1

    def leaves(column: int, position: int) -> None:
        """Add the entries of a column of clean pages that are demoted at a position."""
        moving = np.array([places.moving + int(stretch[position])])
        found.append((moving, np.array([column]), -limits.demotion_weight))
        if limits.generous:
            here = places.after + point[lived == position]
            found.append((here, np.full(len(here), column), -1.0))

    demotions = places.demotions
    for at, of in enumerate(columns.of_groups):
        first, segment, stretch = places.first[at], places.segments[at], groups.stretches[at]
        point, lived = groups.lived_points[at]
        following = following_segments(segment, bool(groups.persistent[at]))
        for one, column in of.segments.items():
            add((column, 1.0), (first + one, -1.0))
        for change in of.changes:
            position = int(places.changes[at][change.change])
            demoted = demotions + change.change
            balance: list[tuple[int, float]] = []
            if change.before is not None:
                balance.append((of.segments[change.before], -1.0))
            if change.demotes:
                gone = of.demoted[change.change]
                leaves(gone, position)
                add((gone, 1.0), *balance)
                add((gone, 1.0), (demoted, -1.0))
                balance.append((gone, 1.0))
            if change.after is None:
                continue
            if change.fetches_clean:
                # The part promoted at a change is the increase of the fast part plus the part
                # demoted at the same change.
                here_, there = first + int(segment[position]), first + int(following[position])
                balance += [(there, -1.0), (here_, 1.0), (demoted, -1.0)]
            add((of.segments[change.after], 1.0), *balance)
        if of.dying is not None:
            leaves(of.dying, len(stretch) - 1)
            add((of.dying, 1.0), (of.segments[int(segment[-1])], -1.0))
            add((of.dying, 1.0), (places.dying[at], -1.0))
        demotions += len(places.changes[at])
    return found, row


def demoted_clean(groups: Groups, fast_pages: Floats) -> Mask:
    """(G,): for each group, whether the solution with these fast pages demotes clean pages of it.

    fast_pages: (S, G), see Solution.
    """
    found = np.zeros(len(groups.pages), np.bool_)
    for at in range(len(groups.pages)) if groups.paged else ():
        length, lasts = int(groups.length[at]), bool(groups.persistent[at])
        fast, writes = fast_pages[:length, at], groups.writes[:length, at]
        change = np.diff(fast, append=fast[0] if lasts else fast[-1])
        clean = 0.0
        # A persistent group's life is circular: a second pass over it begins with the clean pages
        # that the first pass has left.
        for position in [*range(length), *(range(length) if lasts else ())]:
            if writes[position]:
                clean = 0.0
            elif change[position] > 0:
                clean += float(change[position])
            elif change[position] < 0:
                gone = min(-float(change[position]), clean)
                found[at] |= gone >= 1.0
                clean -= gone
    return found
