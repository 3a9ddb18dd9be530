# SPDX-License-Identifier: Apache-2.0
"""The events, costs and moves of each stretch under a plan, precomputed for fast replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sentineld.model.arrays import Floats, Mask
from sentineld.model.energy import EnergyModel
from sentineld.model.plan import Plan
from sentineld.model.profile import Kind, Profile
from sentineld.model.tiers import Overlap
from sentineld.model.timing import Timing, touched_pages
from sentineld.plan.expected import ahead_of_time, settled, useful_until
from sentineld.plan.items import share_passed, tensor_pages
from sentineld.plan.move_queue import MoveTimes, move_times
from sentineld.plan.stall_trial import late_moves, stall_boundaries
from sentineld.simulate.cells import Cells, cells_of, page_costs, written_cells


class Birth(NamedTuple):
    """Pages are born in the cells [low, high), except in cells that already have pages."""

    at: float  # the birth comes after this share of the stretch's time
    low: int
    high: int
    # The costs of each slow page of these cells in this stretch: AccessCosts.direct_ns and
    # hideable_ns, and Timing.busy_ns().
    cost_ns: float
    hideable_ns: float
    busy_ns: float
    joules: float = 0.0  # EnergyModel.extra_joules() of each slow page; 0: not computed


@dataclass(frozen=True)
class PagedAccesses:
    """On paged tiers, the pages of C cells that each of S stretches touches and changes."""

    touched: Floats
    """(S, C), share of the cell's pages that the stretch touches."""
    changed: Mask
    """(S, C), whether the stretch writes to the cell's pages."""
    back_ns: Floats
    """(S, C), time to write back each page of the cell if a fault fetches the page but the page
    does not stay in memory; 0 if the stretch does not write to the cell."""


class Drop(NamedTuple):
    """The pages of the cells [low, high) are dropped."""

    at: float  # the drop comes after this share of the stretch's time
    low: int
    high: int


class Move(NamedTuple):
    """One of the plan's moves: the cells [low, high) move to a tier."""

    low: int
    high: int
    tier: int
    times: MoveTimes


Event = Birth | Drop


@dataclass(frozen=True)
class Script:
    """Costs and events of one step that has S stretches; its pages are in C cells."""

    costs_ns: Floats
    """(S, C), AccessCosts.direct_ns of each page of a cell in a stretch if the page is slow when
    the stretch begins."""
    hideable_ns: Floats
    """(S, C), like costs_ns, but with AccessCosts.hideable_ns."""
    busy_ns: Floats
    """(S, C), like costs_ns, but with Timing.busy_ns()."""
    events: tuple[tuple[Event, ...], ...]
    """The events of each stretch, in order."""
    joules: Floats | None = None
    """(S, C), like costs_ns, but with EnergyModel.extra_joules(); None: not computed."""


@dataclass(frozen=True)
class Scripts:
    """A plan prepared for replay."""

    cells: Cells
    times_ns: Floats
    """(S,), time of each stretch with all memory fast."""
    hidden_ns: Floats | None
    """(S,), AccessCosts.hidden_ns; None: nothing overlaps."""
    overlap: Overlap
    """For this field and the next one, see the class Tiers."""
    moves_yield: bool
    first: Script
    """The first step, in which the pages of all transient tensors are born."""
    steady: Script
    """The later steps, in which only pages that were dropped are born again."""
    moves: tuple[tuple[Move, ...], ...]
    """The moves, by the stretch in which they may begin."""
    waits: tuple[int, ...]
    stalls: tuple[int, ...]
    initial: tuple[tuple[int, int, int], ...]
    """(low, high, tier) of persistent cells: their tiers at boundary 0 according to the plan."""
    settled: tuple[tuple[int, int, int], ...]
    """(low, high, tier) of cells that the plan never moves: the tier to which the plan assigns
    them."""
    birth_ns: float
    """Time of one page birth."""
    paged: PagedAccesses | None
    """None: the tiers are not paged."""


def scripts(
    plan: Plan, profile: Profile, timing: Timing, energy: EnergyModel | None = None
) -> Scripts:
    """Prepare a plan for replay. energy: the model with which Step.slow_joules is computed; None:
    it is not computed."""
    cells = cells_of(plan, profile)
    found = timing.costs(profile)
    costs = [found.direct_ns, found.hideable_ns, timing.busy_ns(profile)]
    if energy is not None:
        costs.append(energy.extra_joules(profile))
    transient = (profile.tensors["slot"] >= 0) & (profile.tensors["kind"] != Kind.PERSISTENT)
    reborn = transient & _any_inside(cells, cells.dropped)
    return Scripts(
        cells=cells,
        times_ns=profile.stretches["time_ns"].astype(np.float64),
        hidden_ns=None if timing.overlap == Overlap.NONE else found.hidden_ns,
        overlap=timing.overlap,
        moves_yield=timing.moves_yield,
        first=_script(profile, cells, costs, transient),
        steady=_script(profile, cells, costs, reborn),
        moves=_moves(plan, profile, cells),
        waits=tuple(plan.layout.waits.tolist()),
        stalls=tuple(stall_boundaries(plan).tolist()),
        initial=_targets(plan.initial, cells, profile.page_bytes),
        settled=_targets(settled(plan, profile.page_bytes), cells, profile.page_bytes),
        birth_ns=timing.birth_ns_per_byte * profile.page_bytes,
        paged=_paged_accesses(profile, cells, timing) if timing.paged else None,
    )


def _paged_accesses(profile: Profile, cells: Cells, timing: Timing) -> PagedAccesses:
    rows = profile.accesses["bytes_written"] > 0
    touched = page_costs(profile, cells, touched_pages(profile), np.ones(len(rows), np.bool_))
    return PagedAccesses(
        # Rounding errors must not leave a page untouched.
        touched=np.where(touched > 1.0 - 1e-6, 1.0, touched),
        changed=written_cells(profile, cells),
        back_ns=page_costs(profile, cells, timing.write_back_ns(profile), rows),
    )


def _any_inside(cells: Cells, mask: Mask) -> Mask:
    """(T,): whether the mask is true for any of a tensor's cells."""
    before = np.concatenate([[0], np.cumsum(mask)])
    found: Mask = before[cells.high] > before[cells.low]
    return found


def _script(profile: Profile, cells: Cells, costs: Sequence[Floats], born: Mask) -> Script:
    """Make the script of a step.

    costs: arrays with one entry per row of profile.accesses: AccessCosts.direct_ns and hideable_ns,
        Timing.busy_ns() and, if energy is computed, EnergyModel.extra_joules().
    born: (T,), whether the tensor's pages are born when the tensor is allocated in this step.
    """
    rows, tensors = profile.accesses, profile.tensors
    birth_stretch = tensors["birth_stretch"][rows["tensor"]]
    at_birth = born[rows["tensor"]] & (rows["stretch"] == birth_stretch)
    at_births = [
        np.bincount(rows["tensor"][at_birth], cost[at_birth], minlength=len(tensors))
        / np.maximum(tensor_pages(profile), 1)
        for cost in costs
    ]
    count = profile.stretch_count
    born_at, dead_at = (
        share_passed(profile, tensors[f"{end}_stretch"], tensors[f"{end}_event"].astype(np.int64))
        for end in ("birth", "death")
    )
    listed: list[list[tuple[int, int, Event]]] = [[] for _ in range(count)]
    for row in np.flatnonzero(born & (cells.high > cells.low)).tolist():
        tensor = tensors[row]
        stretch, event = int(tensor["birth_stretch"]), int(tensor["birth_event"])
        birth = Birth(
            float(born_at[row]),
            int(cells.low[row]),
            int(cells.high[row]),
            *(float(cost[row]) for cost in at_births),
        )
        listed[stretch].append((event, 1, birth))
    for row, low, high in zip(
        cells.dropper.tolist(), cells.drop_low.tolist(), cells.drop_high.tolist(), strict=True
    ):
        tensor = tensors[row]
        if high > low and tensor["kind"] != Kind.PERSISTENT:
            stretch, event = int(tensor["death_stretch"]), int(tensor["death_event"])
            listed[stretch].append((event, 0, Drop(float(dead_at[row]), low, high)))
    # The sort is stable, so births with the same birth_event keep the order of their tensors.
    events = tuple(
        tuple(event for _, _, event in sorted(stretch, key=lambda entry: entry[:2]))
        for stretch in listed
    )
    direct, hideable, busy, *joules = (
        page_costs(profile, cells, cost, ~at_birth) for cost in costs
    )
    return Script(direct, hideable, busy, events, joules[0] if joules else None)


def _moves(plan: Plan, profile: Profile, cells: Cells) -> tuple[tuple[Move, ...], ...]:
    count = profile.stretch_count
    listed: list[list[Move]] = [[] for _ in range(count)]
    useful, ahead = useful_until(profile, plan), ahead_of_time(profile, plan)
    times = move_times(plan.moves, count, useful, ahead, late_moves(plan))
    places = cells.inside(plan.moves, profile.page_bytes)
    for move, (low, high), when in zip(plan.moves, places, times, strict=True):
        listed[when.begin].append(Move(low, high, int(move["tier"]), when))
    return tuple(tuple(moves) for moves in listed)


def _targets(
    ranges: np.ndarray[tuple[int], np.dtype[np.void]], cells: Cells, page_bytes: int
) -> tuple[tuple[int, int, int], ...]:
    return tuple(
        (low, high, int(row["tier"]))
        for row, (low, high) in zip(ranges, cells.inside(ranges, page_bytes), strict=True)
        if high > low
    )
