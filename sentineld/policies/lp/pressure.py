# SPDX-License-Identifier: Apache-2.0
"""Pressure points: the moments of each stretch at which the live bytes are locally largest.

A pressure point lies after births and before a death. A placement that fits
at all pressure points fits at every moment.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sentineld.model.arrays import Floats, Integers
from sentineld.model.profile import Profile
from sentineld.plan.items import share_passed


@dataclass(frozen=True)
class PressurePoints:
    """C pressure points in order of time, at least one in each of S stretches."""

    first: Integers
    """(S + 1,): the points of stretch s are first[s] .. first[s + 1] - 1."""

    event: Integers
    """(C,): number of the event (birth or death) after which each point lies."""

    share: Floats
    """(C,): the place of each point within its stretch, from 0 (beginning) to 1 (end)."""

    def before(self, stretch: int, event: int) -> int:
        """Number of the stretch's points that lie before an event."""
        events = self.event[self.first[stretch] : self.first[stretch + 1]]
        return int(np.searchsorted(events, event))

    def of(self, stretch: int) -> int:
        """Number of points in a stretch."""
        return int(self.first[stretch + 1] - self.first[stretch])


def pressure_points_of(profile: Profile, tensors: Integers) -> PressurePoints:
    """The pressure points of the births and deaths of these tensors (rows of the profile)."""
    begins = profile.stretches["event"].astype(np.int64)
    ends = np.append(begins[1:], profile.event_count)
    births = np.unique(profile.tensors["birth_event"][tensors].astype(np.int64))
    deaths = np.unique(profile.tensors["death_event"][tensors].astype(np.int64))
    first: list[int] = [0]
    events: list[int] = []
    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
        low, high = np.searchsorted(births, [begin, end])
        born = births[low:high]
        # For each death, put a point after the last birth that precedes it. Put another point after
        # the stretch's last birth.
        low, high = np.searchsorted(deaths, [begin, end])
        before = np.searchsorted(born, deaths[low:high], side="left") - 1
        kept = np.unique(np.append(before[before >= 0], len(born) - 1))
        moments = born[kept].tolist() if len(born) else [begin - 1]
        if len(born) and (before < 0).any():
            # A tensor dies before the stretch's first birth, so add a point at the beginning.
            moments.insert(0, begin - 1)
        events.extend(moments)
        first.append(len(events))
    event = np.array(events, dtype=np.int64)
    stretch = np.repeat(np.arange(len(first) - 1), np.diff(first))
    return PressurePoints(
        np.array(first, dtype=np.int64), event, share_passed(profile, stretch, event)
    )
