# SPDX-License-Identifier: Apache-2.0
"""Places of columns and rows in the linear program, for the modules that add further rows to it."""

from __future__ import annotations

from dataclasses import dataclass

from sentineld.model.arrays import Integers
from sentineld.policies.lp.problem import Changes


@dataclass(frozen=True)
class Places:
    """The numbers of existing columns and rows; program.py describes each kind."""

    first: list[int]
    """For each group, the column of its first segment."""

    segments: list[Integers]
    """For each group, the segment of each position of its lifetime."""

    changes: Changes

    demotions: int
    """The first of the columns of demotions. Each change (see Changes) of each group has one such
    column."""

    dying: dict[int, int]
    """For each group that may be demoted in the stretch of its death, the column of the part that
    is demoted there."""

    taken: int
    """The first of the columns of the options' shares (options.py)."""

    moving: int
    """The first of the rows that limit the moves in each stretch."""

    boundaries: int
    """The first of the rows that limit the fast pages at each boundary."""

    saving: int
    """The first of the rows of the savings of each stretch, in a generous program."""

    before: int
    """The first of the rows that limit the fast pages at each pressure point before the moves of
    its stretch."""

    after: int
    """The first of the rows that limit the fast pages at each pressure point after the moves of its
    stretch. In a generous program, a demotion makes room in these rows only if it had time to
    complete before the point."""
