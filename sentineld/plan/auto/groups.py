# SPDX-License-Identifier: Apache-2.0
"""Tensors that live and cost alike, as one body of pages, and the crowds that they meet in.

A crowd is a moment of a stretch at which births end and a death follows: of all
moments these are the fullest, so that what fits at each of them always fits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sentineld.plan.items import (
    Floats,
    Integers,
    by_position,
    lasting,
    lifetimes,
    tensor_pages,
    transient,
)
from sentineld.profile.model import Kind, Profile
from sentineld.timing import Timing

DIGITS = 4
"""Costs of a page that agree in so many significant digits count as equal."""


@dataclass(frozen=True)
class Crowds:
    """first: (S + 1,), of each stretch; those of stretch s are first[s] .. first[s + 1], at least
    one. event: (C,), they stand after it."""

    first: Integers
    event: Integers


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


def groups_of(profile: Profile, timing: Timing) -> Groups:
    """Group the tensors whose place costs anything."""
    count = profile.stretch_count
    birth, length = lifetimes(profile)
    lasts = profile.tensors["kind"] == Kind.PERSISTENT
    pages = tensor_pages(profile)
    cost = _rounded(by_position(profile, timing.extra_ns(profile)) / np.maximum(pages, 1))
    matters = np.flatnonzero(
        cost.any(axis=0) & (transient(profile) | lasting(profile)) & (pages > 0)
    )
    crowds = _crowds(profile, matters[~lasts[matters]])
    death_stretch = (birth + length - 1) % max(count, 1)
    birth_event = profile.tensors["birth_event"].astype(np.int64)
    death_event = profile.tensors["death_event"].astype(np.int64)
    found: dict[tuple[int, int, bool, int, int, bytes], list[int]] = {}
    for row in matters.tolist():
        begin, end = int(birth[row]), int(death_stretch[row])
        enters, leaves = 0, int(crowds.first[end + 1] - crowds.first[end])
        if not lasts[row] and length[row] < count:
            enters = _before(crowds, begin, int(birth_event[row]))
            leaves = _before(crowds, end, int(death_event[row]))
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
    kept = np.sort(np.argsort(-total, kind="stable")[:limit])
    return Groups(
        members=tuple(groups.members[at] for at in kept.tolist()),
        sizes=tuple(groups.sizes[at] for at in kept.tolist()),
        birth=groups.birth[kept],
        length=groups.length[kept],
        pages=groups.pages[kept],
        persistent=groups.persistent[kept],
        enters=groups.enters[kept],
        leaves=groups.leaves[kept],
        cost_ns=groups.cost_ns[:, kept],
        crowds=groups.crowds,
    )


def _before(crowds: Crowds, stretch: int, event: int) -> int:
    events = crowds.event[crowds.first[stretch] : crowds.first[stretch + 1]]
    return int(np.searchsorted(events, event))


def _crowds(profile: Profile, transient: Integers) -> Crowds:
    begins = profile.stretches["event"].astype(np.int64)
    ends = np.append(begins[1:], profile.event_count)
    births = np.unique(profile.tensors["birth_event"][transient].astype(np.int64))
    deaths = np.unique(profile.tensors["death_event"][transient].astype(np.int64))
    first: list[int] = [0]
    events: list[int] = []
    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
        low, high = np.searchsorted(births, [begin, end])
        born = births[low:high]
        # The last birth before each death, and the last one of the stretch. Who dies before the
        # first birth is met at the stretch's begin.
        low, high = np.searchsorted(deaths, [begin, end])
        before = np.searchsorted(born, deaths[low:high], side="left") - 1
        kept = np.unique(np.append(before[before >= 0], len(born) - 1))
        moments = born[kept].tolist() if len(born) else [begin - 1]
        if len(born) and (before < 0).any():
            moments.insert(0, begin - 1)
        events.extend(moments)
        first.append(len(events))
    return Crowds(np.array(first, dtype=np.int64), np.array(events, dtype=np.int64))


def _rounded(values: Floats) -> Floats:
    scale = np.power(10.0, np.floor(np.log10(np.where(values > 0, values, 1.0))) - DIGITS + 1)
    rounded: Floats = np.rint(values / scale) * scale
    return rounded
