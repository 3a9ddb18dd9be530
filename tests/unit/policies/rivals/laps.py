# SPDX-License-Identifier: Apache-2.0
"""Steps of a few stretches and tensors; one line of code defines a tensor."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sentineld.model.profile import ACCESS_DTYPE, STRETCH_DTYPE, TENSOR_DTYPE, Kind, Profile
from sentineld.model.protocol import Boundary
from sentineld.model.tiers import Tier, Tiers
from sentineld.policies.shares import MOVE_SHARE
from sentineld.profile.lifetimes import peak_bytes

PAGE = 4096
HEAP = 0x10_0000_0000


@dataclass(frozen=True)
class Life:
    """A tensor and the stretches that use it."""

    pages: int
    read_in: tuple[int, ...]  # stretches that read it
    lives: tuple[int, int] | None = None  # first and last stretch of its life; None: persistent
    written_in: tuple[int, ...] = ()  # the stretches of `read_in` that also write to it


def lap(stretches: int, *lives: Life) -> Profile:
    """A step in which each stretch is a layer and takes a second. A tensor is born at the start of
    its first stretch and dies at the end of its last one."""
    tensors = np.zeros(len(lives), TENSOR_DTYPE)
    starts = np.cumsum([life.pages for life in lives]) - [life.pages for life in lives]
    changes = sorted(
        (stretch, kind, at)
        for at, life in enumerate(lives)
        if life.lives is not None
        for kind, stretch in enumerate(life.lives)
    )
    event_of = {(kind, at): event for event, (_, kind, at) in enumerate(changes)}
    slots = sorted((event, at) for (kind, at), event in event_of.items() if kind == 0)
    slot_of = {at: slot for slot, (_, at) in enumerate(slots)}
    for at, life in enumerate(lives):
        row = tensors[at]
        row["bytes"] = life.pages * PAGE
        row["address"] = HEAP + int(starts[at]) * PAGE
        if life.lives is None:
            row["slot"], row["kind"] = -1, Kind.PERSISTENT
            row["death_event"], row["death_stretch"] = len(changes), stretches - 1
        else:
            row["slot"], row["kind"] = slot_of[at], Kind.ACTIVATION
            row["birth_event"], row["death_event"] = event_of[0, at], event_of[1, at]
            row["birth_stretch"], row["death_stretch"] = life.lives
    rows = sorted((stretch, at) for at, life in enumerate(lives) for stretch in life.read_in)
    accesses = np.zeros(len(rows), ACCESS_DTYPE)
    for number, (stretch, at) in enumerate(rows):
        pages = lives[at].pages
        written = pages * PAGE if stretch in lives[at].written_in else 0
        accesses[number] = (stretch, at, pages * PAGE, written, pages, pages)
    table = np.zeros(stretches, STRETCH_DTYPE)
    table["kind"] = [Boundary.STEP, *[Boundary.FORWARD] * (stretches - 1)]
    table["layer"] = np.arange(stretches)
    table["time_ns"] = 1_000_000_000
    for stretch in range(stretches):
        table["event"][stretch] = sum(change[0] < stretch for change in changes)
        table["cursor"][stretch] = sum(c[0] < stretch and c[1] == 0 for c in changes)
    return Profile(
        tensors=tensors,
        accesses=accesses,
        stretches=table,
        layers=tuple(f"layer{number}" for number in range(stretches)),
        slot_count=len(slots),
        event_count=len(changes),
        page_bytes=PAGE,
        peak_bytes=peak_bytes(tensors, len(changes), PAGE),
        source="module",
        unattributed_pages=0,
        heap_base=HEAP,
    )


def moving(pages_per_s: float) -> Tiers:
    """Tiers between which plans may move this number of pages per second. An access to a slow byte
    takes 1 ns longer than an access to a fast one."""
    # Without the last factor, rounding could make the rate a little too low.
    rate = pages_per_s * PAGE / MOVE_SHARE * (1 + 1e-14)
    return Tiers((Tier((0,), 0, 1e9, 1e9), Tier((1,), 0, 0.5e9, 0.5e9)), rate, "toy")
