# SPDX-License-Identifier: Apache-2.0
"""The fullest moments of each stretch: crowds, at which births end and a death follows.

What fits at each of them fits at every moment.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sentineld.model.arrays import Floats, Integers
from sentineld.model.profile import Profile
from sentineld.plan.items import share_passed


@dataclass(frozen=True)
class Crowds:
    """first: (S + 1,), of each stretch; those of stretch s are first[s] .. first[s + 1], at least
    one. event: (C,), they stand after it. share: (C,), of their stretch that has passed then."""

    first: Integers
    event: Integers
    share: Floats

    def before(self, stretch: int, event: int) -> int:
        """How many of a stretch's crowds have passed when the event comes."""
        events = self.event[self.first[stretch] : self.first[stretch + 1]]
        return int(np.searchsorted(events, event))

    def of(self, stretch: int) -> int:
        """How many there are in a stretch."""
        return int(self.first[stretch + 1] - self.first[stretch])


def crowds_of(profile: Profile, tensors: Integers) -> Crowds:
    """The crowds that births and deaths of these tensors (rows of the profile) make."""
    begins = profile.stretches["event"].astype(np.int64)
    ends = np.append(begins[1:], profile.event_count)
    births = np.unique(profile.tensors["birth_event"][tensors].astype(np.int64))
    deaths = np.unique(profile.tensors["death_event"][tensors].astype(np.int64))
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
    standing = np.array(events, dtype=np.int64)
    stretch = np.repeat(np.arange(len(first) - 1), np.diff(first))
    return Crowds(
        np.array(first, dtype=np.int64), standing, share_passed(profile, stretch, standing)
    )
