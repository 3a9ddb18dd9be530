# SPDX-License-Identifier: Apache-2.0
"""Resident bytes of a step's live tensors at one moment, by layer and tier."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sentineld.model.arrays import Integers
from sentineld.model.plan import Plan, Space
from sentineld.model.profile import Profile
from sentineld.model.protocol import Boundary
from sentineld.plan.items import lifetimes, tensor_pages, transient
from sentineld.plan.layers import layer_name
from sentineld.plan.residency import places

_NAMES = {
    Boundary.STEP: "(step begin)",
    Boundary.OPTIMIZER: "(optimizer)",
    Boundary.OUTSIDE: "(outside)",
}
"""Names of stretches without a layer, by the kind of the boundary that begins them."""


@dataclass(frozen=True)
class PageTiers:
    """The tiers of a process's pages at one moment."""

    stretch: int  # the stretch of the step in which this moment lies
    # For arena and heap, (P,): the tier of each page; residency.ABSENT if the page is absent.
    tiers: Mapping[Space, npt.NDArray[np.uint8]]


@dataclass(frozen=True)
class LayerBytes:
    """Resident bytes of one layer's live tensors."""

    layer: str
    bytes_by_tier: tuple[int, ...]


def bytes_by_layer(
    plan: Plan, profile: Profile, pages: PageTiers, tier_count: int
) -> tuple[list[LayerBytes], list[int]]:
    """The layers whose live tensors have resident pages, in the order of the step, and the resident
    bytes on each tier that belong to none of the layers.

    A transient tensor belongs to the layer of its birth. A persistent tensor belongs to the layer
    of its first access in the step. Here, all calls of a module, forward and backward, count as one
    layer. Pages of dead tensors, and of persistent tensors that the step does not access, belong to
    no layer. A page that several tensors share is counted once for each of these tensors.
    """
    names = _stretch_names(profile)
    found: dict[str, Integers] = {}
    others = {space: np.ones(len(tiers), np.bool_) for space, tiers in pages.tiers.items()}
    for home, space, held in _tensors_of_layers(plan, profile, pages.stretch):
        tiers = _count(pages.tiers[space][held], tier_count)
        found[names[home]] = found.get(names[home], 0) + tiers
        others[space][held] = False
    left = sum(_count(tiers[others[space]], tier_count) for space, tiers in pages.tiers.items())
    layers = [
        LayerBytes(name, tuple((tiers * profile.page_bytes).tolist()))
        for name, tiers in found.items()
        if tiers.any()
    ]
    return layers, [int(size) for size in np.asarray(left) * profile.page_bytes]


def _count(tiers: npt.NDArray[np.uint8], tier_count: int) -> Integers:
    """The number of pages on each tier. tiers: the tier of each page."""
    found: Integers = np.bincount(tiers, minlength=tier_count)[:tier_count]
    return found


def _tensors_of_layers(
    plan: Plan, profile: Profile, stretch: int
) -> Iterator[tuple[int, Space, slice]]:
    """For each live tensor that belongs to a layer: a stretch of this layer, the tensor's space and
    its pages there; in the order of these stretches."""
    count = profile.stretch_count
    if not count:
        return
    space, offset = places(plan, profile)
    first, size = offset // profile.page_bytes, tensor_pages(profile)
    birth, length = lifetimes(profile)
    home = _home_stretches(profile)
    alive = (stretch - birth) % count < length
    order = np.flatnonzero(alive & (space >= 0) & (home >= 0))
    for tensor in order[np.argsort(home[order], kind="stable")].tolist():
        held = slice(int(first[tensor]), int(first[tensor] + size[tensor]))
        yield int(home[tensor]), Space(int(space[tensor])), held


def _home_stretches(profile: Profile) -> Integers:
    """(T,): for each tensor, a stretch of the layer to which it belongs; -1 if it belongs to no
    layer."""
    rows = profile.accesses
    first_access = np.full(len(profile.tensors), -1, np.int64)
    # The rows are sorted by stretch, and unique() returns the index of a tensor's first row.
    tensors, at = np.unique(rows["tensor"], return_index=True)
    first_access[tensors] = rows["stretch"][at]
    found: Integers = np.where(
        transient(profile), profile.tensors["birth_stretch"].astype(np.int64), first_access
    )
    return found


def _stretch_names(profile: Profile) -> list[str]:
    """The name of each stretch's layer. A stretch that begins at a cut and has no layer gets the
    name of the stretch before it."""
    names: list[str] = []
    for stretch, kind in enumerate(profile.stretches["kind"].tolist()):
        name = layer_name(profile, stretch)
        if not name and kind == Boundary.CUT and names:
            name = names[-1]
        names.append(name or _NAMES.get(kind, "(no layer)"))
    return names
