# SPDX-License-Identifier: Apache-2.0
"""Recomputations as options of the generous program (see Limits in problem.py).

An option replaces tensors by two parts each: one that lives up to the drop and one that lives from
the recomputation on. It also lengthens the stretch of the recomputation. The program chooses which
share of the option is taken, 0..1. If the share is r, the groups of the tensors lose r times the
tensors' pages, and the groups of the first parts and of the second parts each gain as many. So the
groups' pages and costs are linear in r.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sentineld.model.arrays import Floats, Integers
from sentineld.policies.lp.groups import Groups
from sentineld.policies.lp.places import Places
from sentineld.policies.lp.pool import Entry
from sentineld.policies.lp.problem import UNIT_PAGES, Limits

_NONE = np.zeros(0, np.int64)


@dataclass(frozen=True)
class Options:
    """N options. The program's Groups.pages are the pages if no option is taken."""

    stretch: Integers
    """(N,): the stretch that each option lengthens."""
    time_ns: Floats
    """(N,): the time by which each option lengthens its stretch."""
    option: Integers
    """(K,): the option of each entry. An entry is a change in the number of a group's pages."""
    group: Integers
    """(K,): the group of each entry."""
    pages: Floats
    """(K,): the pages that the group gains if the option is taken; negative if it loses them."""

    def only(self, groups: Groups, which: Integers) -> tuple[Integers, Options]:
        """Keep only some options. Returns (indices of the groups that can then have pages, the kept
        options with the groups renumbered). which: the kept options, ascending."""
        entries = np.isin(self.option, which)
        has = groups.pages > 0
        has[self.group[entries]] = True
        kept = np.flatnonzero(has)
        return kept, Options(
            stretch=self.stretch[which],
            time_ns=self.time_ns[which],
            option=np.searchsorted(which, self.option[entries]),
            group=np.searchsorted(kept, self.group[entries]),
            pages=self.pages[entries],
        )

    def most_pages(self, groups: Groups) -> Floats:
        """(G,): the pages of each group if it gains as many as possible and loses none."""
        found = groups.pages.astype(np.float64)
        gains = self.pages > 0
        np.add.at(found, self.group[gains], self.pages[gains])
        return found

    def changes(self, groups: Groups, amounts: Floats) -> tuple[Integers, Integers, Floats]:
        """How the options change a sum over all pages, such as the cost of a stretch. Returns three
        arrays of equal length (stretches, options, amounts): taking the option adds the amount to
        the sum of the stretch.

        amounts: (S, G), the amount that each page of a group contributes to the sum at each
        position of the group's lifetime.
        """
        stretches, options, found = [_NONE], [_NONE], [np.zeros(0)]
        for option, group, pages in zip(self.option, self.group, self.pages, strict=True):
            own = amounts[: int(groups.length[group]), group]
            used = np.flatnonzero(own)
            stretches.append(groups.stretches[group][used])
            options.append(np.full(len(used), option))
            found.append(own[used] * pages)
        return np.concatenate(stretches), np.concatenate(options), np.concatenate(found)

    def gains_ns(self, values: Floats, weight: Floats) -> Floats:
        """(N,): the time by which each option lowers the dual's costs (dual.py); negative if it
        raises them.

        values: (G,), for one page of each group, the gain of its best life minus its cost if it is
        always slow. weight: (S,), the cost of 1 ns of each stretch.
        """
        found = -self.time_ns * weight[self.stretch]
        np.add.at(found, self.option, self.pages * values[self.group])
        return found


def option_rows(
    groups: Groups, options: Options, places: Places, limits: Limits, unit_ns: float, row: int
) -> tuple[list[Entry], Floats]:
    """Make one row for each segment of each group whose number of pages depends on the options. The
    row limits the fast part of the segment to the group's pages.

    A segment is a part of a group's lifetime in which its tiers cannot change; see program.py.

    unit_ns: the program's unit of time. row: the first new row.

    Returns (entries, the limits of the new rows, in UNIT_PAGES). Some of the entries reduce the
    savings of the stretches by the options' time and costs. Others add the time in which accesses
    use the slow tier, as far as it depends on the options, to the rows of the stretches' moves.
    """
    each = np.arange(len(options.stretch))
    stretch, option, cost = options.changes(groups, groups.direct_ns)
    found: list[Entry] = [
        (places.saving + options.stretch, places.taken + each, options.time_ns / unit_ns),
        (places.saving + stretch, places.taken + option, cost / unit_ns),
    ]
    if np.isfinite(limits.promote_ns):
        stretch, option, busy = options.changes(groups, groups.busy_ns)
        pages = busy / limits.promote_ns / UNIT_PAGES
        found.append((places.moving + stretch, places.taken + option, pages))
    most: list[float] = []
    for at in np.unique(options.group).tolist():
        mine = options.group == at
        first = places.first[at]
        for segment in range(int(places.segments[at].max()) + 1):
            here = np.array([row + len(most)])
            found.append((here, np.array([first + segment]), 1.0))
            found.append(
                (
                    np.repeat(here, mine.sum()),
                    places.taken + options.option[mine],
                    -options.pages[mine] / UNIT_PAGES,
                )
            )
            most.append(float(groups.pages[at]) / UNIT_PAGES)
    return found, np.array(most)
