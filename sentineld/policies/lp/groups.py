# SPDX-License-Identifier: Apache-2.0
"""Groups of tensors with equal lifetimes, costs and writes: the units of the linear programs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from sentineld.model.arrays import Floats, Integers
from sentineld.model.profile import Kind, Profile
from sentineld.model.ranges import ranges
from sentineld.model.tiers import Overlap
from sentineld.model.timing import Timing, touched_pages
from sentineld.plan.items import (
    by_position,
    dies_in_birth_stretch_of,
    lifetimes,
    persistent,
    tensor_pages,
    transient,
)
from sentineld.policies.lp.pressure import PressurePoints, pressure_points_of

DIGITS = 4
"""Costs of a page are treated as equal if they agree in this number of significant digits."""


@dataclass(frozen=True)
class Groups:
    """G groups of tensors."""

    members: tuple[Integers, ...]
    """The tensors of each group: rows of the profile's tensors."""

    sizes: tuple[Integers, ...]
    """The number of pages of each tensor of each group."""

    birth: Integers
    """(G,): birth stretch of each group."""

    length: Integers
    """(G,): number of stretches in each group's lifetime."""

    pages: Integers
    """(G,): number of pages of all members of each group."""

    persistent: npt.NDArray[np.bool_]
    """(G,): whether the members are persistent tensors."""

    points_before_birth: Integers
    """(G,): number of pressure points of the birth stretch that lie before the birth."""

    points_before_death: Integers
    """(G,): number of pressure points of the death stretch that lie before the death."""

    dies_in_birth_stretch: npt.NDArray[np.bool_]
    """(G,): whether the members die in the stretch of their birth, but one step later. The members
    are then alive in S + 1 stretches. Position S - 1 represents the last two of these stretches: a
    plan moves no page in the stretch of a death, so the tiers are the same in both. Always False in
    groups for a bound."""

    cost_ns: Floats
    """(S, G): time that each slow page costs at each position of the group's lifetime if accesses
    do not overlap with other work; see Timing.extra_ns()."""

    direct_ns: Floats
    """(S, G): AccessCosts.direct_ns (model/timing.py) of each slow page; equal to cost_ns if
    accesses do not overlap with other work."""

    hideable_ns: Floats
    """(S, G): AccessCosts.hideable_ns of each slow page; 0 if accesses do not overlap with other
    work."""

    points: PressurePoints
    """The pressure points of all groups of the profile; take() keeps all of them."""

    writes: npt.NDArray[np.bool_]
    """(S, G): whether an access writes to the group at each position of its lifetime. All False if
    the tiers are not paged, because the programs use this field on paged tiers only."""

    paged: bool
    """Whether the tiers are paged; see Tiers. If they are, no page is demoted in a stretch that
    uses it."""

    busy_ns: Floats
    """(S, G): for each slow page, the time in which no pages can move because accesses to this page
    use the slow tier; see Timing.busy_ns()."""

    back_ns: Floats
    """(S, G): for each slow page, the time to write it back to the file after the accesses at the
    position; see Timing.write_back_ns()."""

    touched: Floats
    """(S, G): the share of each group's pages that is touched at each position; 0 where no fault
    fetches a page that a promotion can keep (fetched.py), and in all groups that are not for a
    bound on paged tiers."""

    def take(self, which: Integers) -> Groups:
        """The groups with these indices, in the given order."""
        return Groups(
            members=tuple(self.members[at] for at in which.tolist()),
            sizes=tuple(self.sizes[at] for at in which.tolist()),
            birth=self.birth[which],
            length=self.length[which],
            pages=self.pages[which],
            persistent=self.persistent[which],
            points_before_birth=self.points_before_birth[which],
            points_before_death=self.points_before_death[which],
            dies_in_birth_stretch=self.dies_in_birth_stretch[which],
            cost_ns=self.cost_ns[:, which],
            direct_ns=self.direct_ns[:, which],
            hideable_ns=self.hideable_ns[:, which],
            points=self.points,
            writes=self.writes[:, which],
            paged=self.paged,
            busy_ns=self.busy_ns[:, which],
            back_ns=self.back_ns[:, which],
            touched=self.touched[:, which],
        )

    @cached_property
    def used(self) -> npt.NDArray[np.bool_]:
        """(S, G): at which positions of a group's lifetime the group's tier affects the time of the
        stretch."""
        found: npt.NDArray[np.bool_] = (
            (self.cost_ns > 0) | (self.direct_ns != 0) | (self.hideable_ns != 0)
        )
        return found

    @cached_property
    def stays(self) -> npt.NDArray[np.bool_]:
        """(S, G): at which positions of a group's lifetime its fast pages can't be demoted."""
        return self.used & self.paged

    @cached_property
    def stretches(self) -> tuple[Integers, ...]:
        """For each group, (length,): the stretch of each position of its lifetime."""
        count = len(self.cost_ns)
        return tuple(
            (birth + np.arange(length)) % count
            for birth, length in zip(self.birth.tolist(), self.length.tolist(), strict=True)
        )

    @cached_property
    def lived_points(self) -> tuple[tuple[Integers, Integers], ...]:
        """For each group, two arrays: the pressure points at which the group is alive, and the
        position of the group's lifetime that contains each of these points. Position 0 is the
        stretch of the birth."""
        return tuple(self._lived_points(group) for group in range(len(self.pages)))

    def _lived_points(self, group: int) -> tuple[Integers, Integers]:
        stretch = self.stretches[group]
        begin = self.points.first[stretch].copy()
        end = self.points.first[stretch + 1].copy()
        if not self.persistent[group]:
            if not self.dies_in_birth_stretch[group]:
                end[-1] = begin[-1] + self.points_before_death[group]
            begin[0] += self.points_before_birth[group]
        many = np.maximum(end - begin, 0)
        point, position = ranges(begin, many), np.repeat(np.arange(len(stretch)), many)
        if self.dies_in_birth_stretch[group]:
            left = self.points.first[stretch[0]] + np.arange(self.points_before_death[group])
            point = np.append(point, left)
            position = np.append(position, np.full(len(left), len(stretch) - 1))
        return point, position


def groups_of(profile: Profile, timing: Timing, *, generous: bool = False) -> Groups:
    """Group the tensors whose accesses take a different time in slow memory than in fast memory.

    For a plan, only tensors that the plan can place are grouped.

    generous: make the groups for a bound. In this case, tensors that a plan cannot place are
        grouped, too, and costs are rounded down. A tensor counts as absent in those parts of a
        stretch in which it is not known to be alive.
    """
    count = profile.stretch_count
    birth, length = lifetimes(profile)
    lasts = profile.tensors["kind"] == Kind.PERSISTENT
    pages = tensor_pages(profile)
    each = by_position(profile, timing.extra_ns(profile)) / np.maximum(pages, 1)
    cost = _rounded(each, down=generous)
    costs = timing.costs(profile)
    direct, hideable = (
        _rounded(by_position(profile, ns) / np.maximum(pages, 1), down=generous)
        for ns in (costs.direct_ns, costs.hideable_ns)
    )
    # The costs are rounded, so scale the times for which accesses occupy the slow tier by the same
    # factor.
    rounding = np.divide(cost, each, out=np.ones(each.shape), where=each > 0)
    busy, back = (
        by_position(profile, ns) / np.maximum(pages, 1) * rounding
        for ns in (timing.busy_ns(profile), timing.write_back_ns(profile))
    )
    if generous and not timing.paged:
        # In the stretch of a tensor's birth, accesses to the tensor use the slow tier only after
        # the birth. A part of their time can lie in the next stretch, so a bound ignores all of
        # this time.
        busy[0, transient(profile)] = 0.0
    writes = np.zeros(cost.shape, np.bool_)
    if timing.paged:
        writes = by_position(profile, profile.accesses["bytes_written"].astype(np.float64)) > 0
    touched = np.zeros(cost.shape)
    if generous and timing.paged:
        touched = by_position(profile, touched_pages(profile)) / np.maximum(pages, 1)
        # Faults fetch a newborn tensor's pages only if these pages were not dropped at the death of
        # an earlier tensor. If a promotion then keeps them, they count as born fast in the program.
        touched[0, transient(profile)] = 0.0
    matters = (cost.any(axis=0) | direct.any(axis=0) | hideable.any(axis=0)) & (pages > 0)
    if not generous:
        matters &= transient(profile) | persistent(profile)
    chosen = np.flatnonzero(matters)
    points = pressure_points_of(profile, chosen[~lasts[chosen]])
    if generous and timing.overlap == Overlap.TIERS:
        # points.share is the place of each point within its stretch, from 0 (beginning) to 1 (end).
        # If accesses to both tiers overlap, a tensor that is born slow after a point can make the
        # stretch shorter. The point is then nearer to the end. Assume the largest share, 1.
        points = replace(points, share=np.ones(len(points.share)))
    # A `length` is at most S stretches. But a tensor that is born in one step and dies in the same
    # stretch of the next step lives in S + 1 stretches. A bound ignores the last of these
    # stretches.
    again = dies_in_birth_stretch_of(profile) & (not generous)
    death_stretch = (birth + length - 1 + again) % max(count, 1)
    birth_event = profile.tensors["birth_event"].astype(np.int64)
    death_event = profile.tensors["death_event"].astype(np.int64)
    found: dict[tuple[int, int, bool, int, int, bool, bytes], list[int]] = {}
    for row in chosen.tolist():
        begin, end = int(birth[row]), int(death_stretch[row])
        before_birth, before_death = 0, points.of(end)
        if not lasts[row] and (length[row] < count or again[row]):
            before_birth = points.before(begin, int(birth_event[row]))
            before_death = points.before(end, int(death_event[row]))
        elif not lasts[row] and generous:
            # lifetimes() truncates a lifetime that is longer than a step. It is then not known in
            # which part of the first and of the last stretch the tensor is alive. So the tensor
            # counts as absent in both stretches.
            before_birth, before_death = points.of(begin), 0
        key = (
            begin,
            int(length[row]),
            bool(lasts[row]),
            before_birth,
            before_death,
            bool(again[row]),
            b"".join(table[:, row].tobytes() for table in (cost, direct, hideable, writes)),
        )
        found.setdefault(key, []).append(row)
    keys = list(found)
    members = tuple(np.array(found[key], dtype=np.int64) for key in keys)
    firsts = [int(rows[0]) for rows in members]
    return Groups(
        members=members,
        sizes=tuple(pages[rows] for rows in members),
        birth=np.array([key[0] for key in keys], dtype=np.int64),
        length=np.array([key[1] for key in keys], dtype=np.int64),
        pages=np.array([int(pages[rows].sum()) for rows in members], dtype=np.int64),
        persistent=np.array([key[2] for key in keys], dtype=np.bool_),
        points_before_birth=np.array([key[3] for key in keys], dtype=np.int64),
        points_before_death=np.array([key[4] for key in keys], dtype=np.int64),
        dies_in_birth_stretch=np.array([key[5] for key in keys], dtype=np.bool_),
        cost_ns=cost[:, firsts],
        direct_ns=direct[:, firsts],
        hideable_ns=hideable[:, firsts],
        points=points,
        writes=writes[:, firsts],
        paged=timing.paged,
        # A bound uses the values with which the moves have the most time.
        busy_ns=_of_members(busy, members, np.min if generous else np.mean),
        back_ns=_of_members(back, members, np.min if generous else np.mean),
        touched=np.minimum(_of_members(touched, members, np.max), 1.0),
    )


def _of_members(
    values: Floats, members: tuple[Integers, ...], reduce: Callable[..., Floats]
) -> Floats:
    """(S, G): one value for each group and position, reduced from the values of the group's
    members, which can differ (only the members' costs are equal).

    values: (S, T), one value for each position of each tensor's lifetime.
    reduce: np.min, np.mean or np.max.
    """
    found = np.zeros((len(values), len(members)))
    for at, rows in enumerate(members):
        found[:, at] = reduce(values[:, rows], axis=1)
    return found


def most_costly(groups: Groups, limit: int) -> Groups:
    """At most `limit` groups: those whose slow accesses would cost most if accesses did not overlap
    with other work."""
    if len(groups.pages) <= limit:
        return groups
    total = np.maximum(groups.cost_ns, groups.hideable_ns).sum(axis=0) * groups.pages
    return groups.take(np.sort(np.argsort(-total, kind="stable")[:limit]))


def _rounded(values: Floats, *, down: bool) -> Floats:
    sizes = np.abs(values)
    scale = np.power(10.0, np.floor(np.log10(np.where(sizes > 0, sizes, 1.0))) - DIGITS + 1)
    # Without the addend, a float error could round an exact value down by 1 in its last digit.
    whole = np.floor((values + 1e-12 * sizes) / scale) if down else np.rint(values / scale)
    rounded: Floats = whole * scale
    return rounded
