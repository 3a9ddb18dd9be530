# SPDX-License-Identifier: Apache-2.0
"""Tensors that live and cost alike, as one body of pages: what the linear programs decide about."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sentineld.model.arrays import Floats, Integers
from sentineld.model.profile import Kind, Profile
from sentineld.model.timing import Timing
from sentineld.plan.items import by_position, lasting, lifetimes, tensor_pages, transient
from sentineld.policies.lp.pressure import Crowds, crowds_of

DIGITS = 4
"""Costs of a page that agree in so many significant digits count as equal."""


@dataclass(frozen=True)
class Groups:
    """G groups. members: rows of the profile; sizes: their pages. birth, length (stretches), pages:
    (G,). enters: how many crowds of the birth stretch pass before it is there; leaves: how many of
    the stretch of its death find it. cost_ns: (S, G), of a slow page by position of its life."""

    members: tuple[Integers, ...]
    sizes: tuple[Integers, ...]
    birth: Integers
    length: Integers
    pages: Integers
    persistent: npt.NDArray[np.bool_]
    enters: Integers
    leaves: Integers
    cost_ns: Floats
    crowds: Crowds

    def take(self, which: Integers) -> Groups:
        """Some of them, in the given order; the crowds stay."""
        return Groups(
            members=tuple(self.members[at] for at in which.tolist()),
            sizes=tuple(self.sizes[at] for at in which.tolist()),
            birth=self.birth[which],
            length=self.length[which],
            pages=self.pages[which],
            persistent=self.persistent[which],
            enters=self.enters[which],
            leaves=self.leaves[which],
            cost_ns=self.cost_ns[:, which],
            crowds=self.crowds,
        )

    def stretches(self, group: int) -> Integers:
        """(length,): the stretch of each position of a group's life."""
        found: Integers = (int(self.birth[group]) + np.arange(int(self.length[group]))) % len(
            self.cost_ns
        )
        return found

    def met(self, group: int) -> tuple[Integers, Integers]:
        """(crowd, position of the group's life) for each crowd that the group is in."""
        stretch = self.stretches(group)
        begin = self.crowds.first[stretch].copy()
        end = self.crowds.first[stretch + 1].copy()
        if not self.persistent[group]:
            end[-1] = begin[-1] + self.leaves[group]
            begin[0] += self.enters[group]
        many = np.maximum(end - begin, 0)
        position = np.repeat(np.arange(len(stretch)), many)
        ordinal = np.arange(len(position)) - np.repeat(np.cumsum(many) - many, many)
        return begin[position] + ordinal, position


def groups_of(profile: Profile, timing: Timing, *, generous: bool = False) -> Groups:
    """Group the tensors whose place costs anything.

    A plan's are those that a layout can place. generous: for a bound, all of them, costs rounded
    down, and where it isn't known whether a tensor is there in a crowd, it isn't.
    """
    count = profile.stretch_count
    birth, length = lifetimes(profile)
    lasts = profile.tensors["kind"] == Kind.PERSISTENT
    pages = tensor_pages(profile)
    each = by_position(profile, timing.extra_ns(profile)) / np.maximum(pages, 1)
    cost = _rounded(each, down=generous)
    matters = cost.any(axis=0) & (pages > 0)
    if not generous:
        matters &= transient(profile) | lasting(profile)
    chosen = np.flatnonzero(matters)
    crowds = crowds_of(profile, chosen[~lasts[chosen]])
    death_stretch = (birth + length - 1) % max(count, 1)
    birth_event = profile.tensors["birth_event"].astype(np.int64)
    death_event = profile.tensors["death_event"].astype(np.int64)
    found: dict[tuple[int, int, bool, int, int, bytes], list[int]] = {}
    for row in chosen.tolist():
        begin, end = int(birth[row]), int(death_stretch[row])
        enters, leaves = 0, crowds.of(end)
        if not lasts[row] and length[row] < count:
            enters = crowds.before(begin, int(birth_event[row]))
            leaves = crowds.before(end, int(death_event[row]))
        elif not lasts[row] and generous:
            # A life around the whole circle may have been cut to it.
            enters, leaves = crowds.of(begin), 0
        key = (begin, int(length[row]), bool(lasts[row]), enters, leaves, cost[:, row].tobytes())
        found.setdefault(key, []).append(row)
    keys = list(found)
    members = tuple(np.array(found[key], dtype=np.int64) for key in keys)
    return Groups(
        members=members,
        sizes=tuple(pages[rows] for rows in members),
        birth=np.array([key[0] for key in keys], dtype=np.int64),
        length=np.array([key[1] for key in keys], dtype=np.int64),
        pages=np.array([int(pages[rows].sum()) for rows in members], dtype=np.int64),
        persistent=np.array([key[2] for key in keys], dtype=np.bool_),
        enters=np.array([key[3] for key in keys], dtype=np.int64),
        leaves=np.array([key[4] for key in keys], dtype=np.int64),
        cost_ns=cost[:, [int(rows[0]) for rows in members]],
        crowds=crowds,
    )


def most_costly(groups: Groups, limit: int) -> Groups:
    """At most so many groups: those whose slow accesses would cost most."""
    if len(groups.pages) <= limit:
        return groups
    total = groups.cost_ns.sum(axis=0) * groups.pages
    return groups.take(np.sort(np.argsort(-total, kind="stable")[:limit]))


def _rounded(values: Floats, *, down: bool) -> Floats:
    scale = np.power(10.0, np.floor(np.log10(np.where(values > 0, values, 1.0))) - DIGITS + 1)
    # What lacks nothing but a float's precision is not rounded down by a whole digit.
    whole = np.floor(values / scale * (1 + 1e-12)) if down else np.rint(values / scale)
    rounded: Floats = whole * scale
    return rounded
