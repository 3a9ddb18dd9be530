# SPDX-License-Identifier: Apache-2.0
"""Which pages to promote and which to demote, with hysteresis against ping-pong."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sentineld.model.arrays import Integers
from sentineld.policies.temperature.buckets import bucket_of, histogram, hottest_that_fit
from sentineld.policies.temperature.carry import carried


class Choice(NamedTuple):
    """Units (indices), in the order in which to move them."""

    rising: Integers  # hot units with slow pages, the hottest first
    falling: Integers  # cold units with fast pages, the coldest first


class Chooser:
    """Chooses among N units after each scan.

    Hysteresis is not part of the published system (vTMM). If margin and rest are 0, units are
    chosen as published.
    """

    def __init__(self, count: int, margin: int = 0, rest: int = 0) -> None:
        """count: N.

        margin: number of buckets, directly below the coldest hot one, whose units are not demoted.
        rest: after a unit has moved, the number of calls of choose() that must not move it back.
        """
        self._margin, self._rest = margin, rest
        # (N,): calls of choose() until the unit may be demoted, and until it may be promoted.
        self._risen: Integers = np.zeros(count, np.int64)
        self._fallen: Integers = np.zeros(count, np.int64)

    def choose(
        self, temperature: Integers, fast: Integers, slow: Integers, capacity_pages: int
    ) -> Choice:
        """Choose the units to move, so that the hottest buckets that fit into `capacity_pages`
        pages become fast.

        temperature: (N,), see History. fast, slow: (N,), each unit's pages on the two tiers. The
        caller needs to demote only as many falling units as are needed to make room.
        """
        bucket = bucket_of(temperature)
        hot = hottest_that_fit(histogram(bucket, fast + slow), capacity_pages).coldest
        rising = np.flatnonzero((bucket >= hot) & (slow > 0) & (self._fallen == 0))
        cold = (bucket < hot - self._margin) & (fast > 0) & (self._risen == 0)
        falling = np.flatnonzero(cold)
        for left in (self._risen, self._fallen):
            left[left > 0] -= 1
        return Choice(
            rising[np.argsort(-temperature[rising], kind="stable")],
            falling[np.argsort(temperature[falling], kind="stable")],
        )

    def moved(self, risen: Integers, fallen: Integers) -> None:
        """Record which units move. For `rest` calls of choose(), these units do not move back.

        risen, fallen: indices of the units with pages that have been or will be promoted, and of
            those with pages that have been or will be demoted.
        """
        self._risen[risen] = self._rest
        self._fallen[fallen] = self._rest

    def carry(self, origin: Integers) -> None:
        """Replace the units. origin: see carried(). Units without an origin may move
        immediately."""
        self._risen = carried(self._risen, origin)
        self._fallen = carried(self._fallen, origin)
