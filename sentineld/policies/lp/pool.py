# SPDX-License-Identifier: Apache-2.0
"""Rows of the linear program for the pool of dead pages, which births reuse without page faults.

The program does not model addresses: in the program, any dead page that was born fast and is left
in fast memory can serve any birth in fast memory. policies/auto/reuse.py assigns addresses later
and reuses fewer pages than the program assumes. A birth that the pool cannot serve causes page
faults, which take time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sentineld.model.arrays import Floats, Integers
from sentineld.policies.lp.groups import Groups


@dataclass(frozen=True)
class TransientGroups:
    """P transient groups that are alive at one or more pressure points."""

    rows: Integers
    """(P,): the indices of these groups."""

    born: Integers
    """(P,): the first pressure point at which each group is alive."""

    gone: Integers
    """(P,): the first pressure point after each group's death; it may be in the next step."""


def transient_groups_of(groups: Groups) -> TransientGroups:
    """Select the transient groups that are alive at one or more pressure points."""
    rows: list[int] = []
    born: list[int] = []
    gone: list[int] = []
    many = len(groups.points.event)
    for at in np.flatnonzero(~groups.persistent).tolist():
        point, _ = groups.lived_points[at]
        if len(point):
            rows.append(at)
            born.append(int(point[0]))
            gone.append((int(point[-1]) + 1) % many)
    return TransientGroups(*(np.array(found, dtype=np.int64) for found in (rows, born, gone)))


Entry = tuple[Integers, Integers, float | Floats]
"""Rows and columns of some matrix elements, and their values: one value for all, or one for each
element."""


@dataclass(frozen=True)
class PoolColumns:
    """Columns of the program that the pool's rows refer to."""

    at_birth: Integers
    """(P,): for each transient group, the column of the pages that are fast at its birth."""

    at_death: Integers
    """(P,): for each transient group, the column of the pages that are fast at its death."""

    left: int
    """Index of the first column of dead pages that stay in fast memory. There is one such column
    for each pressure point."""

    made: int
    """Index of the first column of pages that births fault in. There is one such column for each
    pressure point."""

    changes_tier: int
    """Index of the first column of pages that are slow at the birth and fast at the death. There
    is one such column for each transient group."""


def pool_rows(found: TransientGroups, columns: PoolColumns, points: int) -> tuple[list[Entry], int]:
    """(entries of the pool's rows, number of rows). Each row's sum has to be at most 0."""
    each, own = np.arange(points), np.arange(len(found.rows))
    left, changes_tier = columns.left + each, columns.changes_tier + own
    behind = points + own
    return [
        # One row per point: the number of dead pages left in fast memory is at most the number left
        # there at the previous point, plus the pages whose tensors have died since, plus the pages
        # that births have faulted in, minus the pages of all fast births. Dead pages that were born
        # slow do not count: they lie in a region whose pages are born slow, so fast births cannot
        # reuse them.
        (each, left, 1.0),
        (np.roll(each, -1), left, -1.0),
        (each, columns.made + each, -1.0),
        (found.born, columns.at_birth, 1.0),
        (found.gone, columns.at_death, -1.0),
        (found.gone, changes_tier, 1.0),
        # One row per group: if more pages are fast at the death than at the birth, the additional
        # pages were born slow.
        (behind, columns.at_death, 1.0),
        (behind, columns.at_birth, -1.0),
        (behind, changes_tier, -1.0),
    ], points + len(own)
