# SPDX-License-Identifier: Apache-2.0
"""The pool of dead tensors' pages, from which newborns are served without a new page, for a linear
program.

To the program pages are alike wherever they are: a page that any tensor left in
fast memory serves whoever is born fast. Addresses are found later (policies/auto/reuse.py)
and do nearly as well. What is not in the pool has to be made, which takes its time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sentineld.model.arrays import Integers
from sentineld.policies.lp.groups import Groups


@dataclass(frozen=True)
class Passing:
    """Groups that are born and die. rows: (P,), which. born: (P,), the first crowd that each is in.
    gone: (P,), the first one that it is not in any more, of the next step perhaps."""

    rows: Integers
    born: Integers
    gone: Integers


def passing_of(groups: Groups) -> Passing:
    """All of them that are in any crowd."""
    rows: list[int] = []
    born: list[int] = []
    gone: list[int] = []
    many = len(groups.crowds.event)
    for at in np.flatnonzero(~groups.persistent).tolist():
        crowd, _ = groups.met(at)
        if len(crowd):
            rows.append(at)
            born.append(int(crowd[0]))
            gone.append((int(crowd[-1]) + 1) % many)
    return Passing(*(np.array(found, dtype=np.int64) for found in (rows, born, gone)))


Entry = tuple[Integers, Integers, float]
"""Rows, columns and the value at all of them."""


@dataclass(frozen=True)
class Columns:
    """Of the program. first, last: (P,), what is fast of each passing group at its birth and at its
    death. left, made: the first of those that say what the dead have left at each crowd, and what
    is made anew for it. astray: the first of those that say what of each passing group is born slow
    and dies fast."""

    first: Integers
    last: Integers
    left: int
    made: int
    astray: int


def pool_rows(found: Passing, columns: Columns, crowds: int) -> tuple[list[Entry], int]:
    """(entries of the pool's own rows, how many rows), each sum at most 0."""
    each, own = np.arange(crowds), np.arange(len(found.rows))
    left, astray = columns.left + each, columns.astray + own
    behind = crowds + own
    return [
        # What is left is no more than what was left before, and of those who died since, and was
        # made, less what the newborn took. What was born slow leaves nothing: its place is one for
        # slow pages.
        (each, left, 1.0),
        (np.roll(each, -1), left, -1.0),
        (each, columns.made + each, -1.0),
        (found.born, columns.first, 1.0),
        (found.gone, columns.last, -1.0),
        (found.gone, astray, 1.0),
        # And nothing for those who are born slow there.
        (behind, columns.last, 1.0),
        (behind, columns.first, -1.0),
        (behind, astray, -1.0),
    ], crowds + len(own)
