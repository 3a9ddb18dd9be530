# SPDX-License-Identifier: Apache-2.0
"""Applies the births and drops of a steady step to the map of the arena's pages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from sentineld.migrate.page_set import PageSet
from sentineld.migrate.pending import Pages, no_pages
from sentineld.migrate.residency_map import FAST, ResidencyMap
from sentineld.model.tiers import Tiers
from sentineld.plan.expected import UNKNOWN_TIER, ExpectedStep

Birth = tuple[slice, int]
"""Pages that are born, and the node on which they then are."""


@dataclass
class _Stretch:
    """The births and drops of one stretch."""

    births: list[Birth] = field(default_factory=list)
    survivors: list[Birth] = field(default_factory=list)
    """The births of tensors that outlive the stretch."""
    drops: list[slice] = field(default_factory=list)
    births_dropped: list[Birth] = field(default_factory=list)
    """The parts of `births` whose pages are dropped in some stretch of the step."""
    survivors_dropped: list[Birth] = field(default_factory=list)
    """The parts of `survivors` whose pages are dropped in this stretch. Used if there was no
    disturbance: at the stretch's end, only these pages can then be absent, because begin() has
    applied the births."""


class ArenaChanges:
    """Applies the births and drops of each stretch.

    Most pages are never dropped, so only their first birth changes the map. After a whole step
    without a disturbance, births are therefore applied only to pages that the step drops in some
    stretch. A disturbance is a change of the map, other than these births and drops, that may make
    a page absent.

    The stretches begin in order. While `settled`, stretches may be left out if none of the
    boundaries up to the next stretch is in boundaries(). Before a stretch that is repeated, or that
    does not follow the last one in any other case, disturbed() must be called.
    """

    def __init__(self, arena: ResidencyMap, step: ExpectedStep, tiers: Tiers) -> None:
        self._arena = arena
        self._stretches = [_Stretch() for _ in range(step.boundary_count)]
        for row in step.drops:
            pages = arena.span(int(row["offset"]), int(row["bytes"]))
            self._stretches[row["stretch"]].drops.append(pages)
        for row in step.births:
            one = self._stretches[row["stretch"]]
            pages = arena.span(int(row["offset"]), int(row["bytes"]))
            birth = pages, birth_node(tiers, int(row["tier"]))
            one.births.append(birth)
            if row["survives"]:
                one.survivors.append(birth)
        dropped = PageSet(pages for one in self._stretches for pages in one.drops)
        for one in self._stretches:
            one.births_dropped = _within(dropped, one.births)
            one.survivors_dropped = _within(PageSet(one.drops), one.survivors)
        # Number of stretches still to begin for which all births are applied.
        self._disturbed_for = 0
        self.disturbed()

    def disturbed(self) -> None:
        """Report a disturbance."""
        self._disturbed_for = len(self._stretches)

    @property
    def settled(self) -> bool:
        """Whether births are applied only to pages that the step drops."""
        return not self._disturbed_for

    def boundaries(self) -> set[int]:
        """The boundaries at which a settled step changes the map."""
        last = [self._stretches[-1], *self._stretches]
        return {
            boundary
            for boundary, (ended, begun) in enumerate(zip(last, self._stretches, strict=False))
            if ended.drops or begun.births_dropped
        }

    def begin(self, stretch: int) -> Pages:
        """Apply the births of a stretch; returns the pages that appeared."""
        one = self._stretches[stretch]
        births = one.births_dropped
        if self._disturbed_for:
            self._disturbed_for -= 1
            births = one.births
        return self._apply(births)

    def end(self, stretch: int) -> None:
        """Apply the drops of a stretch, then the births of the tensors that outlive it: a page can
        be dropped and then born again in the same stretch."""
        one = self._stretches[stretch]
        if one.drops:
            for pages in one.drops:
                self._arena.drops(pages)
            self._apply(one.survivors if self._disturbed_for else one.survivors_dropped)

    def _apply(self, births: list[Birth]) -> Pages:
        found = [self._arena.births(pages, node) for pages, node in births]
        return np.concatenate(found) if found else no_pages()


def birth_node(tiers: Tiers, tier: int) -> int:
    """The node on which a page is after its birth. tier: see BIRTH_DTYPE."""
    return tiers.tiers[FAST if tier == UNKNOWN_TIER else tier].nodes[0]


def _within(pages: PageSet, births: Iterable[Birth]) -> list[Birth]:
    return [(part, node) for born, node in births for part in pages.within(born)]
