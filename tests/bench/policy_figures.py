# SPDX-License-Identifier: Apache-2.0
"""Evaluates the rows of bench-policies: formats them as tables, and checks the claims about the
policy `auto`."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from tests.bench.figures import table

Row = dict[str, Any]
Cell = tuple[str, str, float]

UNLIMITED = "fast-only"
"""This policy ignores the budget. It shows a lower limit of the step time and is not compared with
`auto`."""

OURS = "auto"
TIE = 1e-3
"""Relative difference below which two step times count as equal."""

OVER_BOUND_MEAN, OVER_BOUND_WORST, PLAN_SECONDS = 1.05, 1.12, 3.0
"""Limits for `auto`: step time divided by the bound (geometric mean, worst cell), and planning
time."""


def cell_of(row: Row) -> Cell:
    """Return the benchmark cell of a row: its trace, its preset and its fast fraction."""
    return row["trace"], row["tiers"], row["fast_fraction"]


def slowdown(row: Row) -> float | None:
    """Return the step time divided by the all-fast step time, or None if the policy failed."""
    seconds = row["step_seconds"]
    return None if seconds is None else float(seconds / row["fast_only_seconds"])


def over_bound(row: Row) -> float | None:
    """Return the step time divided by the bound, or None if either is unknown."""
    if row["step_seconds"] is None or row["bound_seconds"] is None:
        return None
    return float(row["step_seconds"] / row["bound_seconds"])


def energy_ratio(row: Row) -> float | None:
    """Return the modelled energy of a step divided by that of an all-fast step. Return None if the
    policy failed, or if an earlier version of the benchmark wrote the row."""
    joules = row.get("modelled_joules")
    return None if joules is None else float(joules / row["fast_only_modelled_joules"])


def geometric_mean(values: Iterable[float | None]) -> float | None:
    """Return the geometric mean of the known values, or None if none is known."""
    logs = [math.log(value) for value in values if value is not None]
    return math.exp(math.fsum(logs) / len(logs)) if logs else None


def by_policy(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Group rows by policy, best policy first and policies with failed cells last."""
    found: defaultdict[str, list[Row]] = defaultdict(list)
    for row in rows:
        found[row["policy"]].append(row)

    def rank(name: str) -> tuple[int, float]:
        failed = sum(row["step_seconds"] is None for row in found[name])
        return failed, geometric_mean(map(slowdown, found[name])) or math.inf

    return {name: found[name] for name in sorted(found, key=rank)}


def policies_table(rows: Sequence[Row]) -> str:
    """Format a line per policy and a line for the bound. A line has geometric means of the policy's
    slowdowns: one over the traces for each preset and fraction, and one over all cells. "energy" is
    the geometric mean of energy_ratio() over all cells, and "/ bound" that of over_bound(). If a
    policy changes the step's work, the bound in its rows is the policy's own; see rows_of() in
    policies.py."""
    columns = sorted({(row["tiers"], row["fast_fraction"]) for row in rows})
    head = [
        "step / all-fast step",
        *(f"{tiers} {fraction:.0%}" for tiers, fraction in columns),
        "all",
        "worst",
        "energy",
        "/ bound",
        "cells",
        "plan s",
    ]
    lines = []
    for name, mine in by_policy(rows).items():
        means = [
            geometric_mean(
                slowdown(row) for row in mine if (row["tiers"], row["fast_fraction"]) == column
            )
            for column in columns
        ]
        known = [value for row in mine if (value := slowdown(row)) is not None]
        plans = [row["plan_seconds"] for row in mine if row["plan_seconds"] is not None]
        kind = mine[0]["kind"]
        bounded = kind != "hardware" and name != UNLIMITED
        lines.append(
            [
                name if kind == "software" else f"{name} ({kind})",
                *map(_figure, means),
                _figure(geometric_mean(known)),
                _figure(max(known, default=None)),
                _figure(geometric_mean(map(energy_ratio, mine))),
                _figure(geometric_mean(map(over_bound, mine))) if bounded else "",
                f"{len(known)}/{len(mine)}",
                f"{max(plans):.1f}" if plans else "-",
            ]
        )
    bounds = {
        cell_of(row): row
        for row in rows
        if row["bound_seconds"] is not None and row["kind"] != "modelled"
    }
    least = [
        geometric_mean(
            row["bound_seconds"] / row["fast_only_seconds"]
            for cell, row in bounds.items()
            if cell[1:] == column
        )
        for column in columns
    ]
    every = [row["bound_seconds"] / row["fast_only_seconds"] for row in bounds.values()]
    lines.append(
        [
            "the bound",
            *map(_figure, least),
            _figure(geometric_mean(every)),
            _figure(max(every, default=None)),
            "",
            "",
            f"{len(every)}/{len({cell_of(row) for row in rows})}",
            "",
        ]
    )
    return table(head, lines)


def verdicts(rows: Sequence[Row]) -> list[str]:
    """Return the claims about `auto` and whether each holds; empty if `auto` did not run."""
    mine = {cell_of(row): row for row in rows if row["policy"] == OURS}
    if not mine:
        return []
    ratios = {cell: value for cell, row in mine.items() if (value := over_bound(row)) is not None}
    failed = [cell for cell, row in mine.items() if row["step_seconds"] is None]
    lines = []
    mean = geometric_mean(ratios.values())
    if mean is not None:
        worst = max(ratios, key=ratios.__getitem__)
        lines += [
            claim(f"geometric mean over the bound: {mean:.4f}", mean <= OVER_BOUND_MEAN),
            claim(
                f"worst cell over the bound: {ratios[worst]:.4f} ({_cell_text(worst)})",
                ratios[worst] <= OVER_BOUND_WORST,
            ),
        ]
    lines.append(claim(f"cells that failed: {len(failed)}", not failed))
    beaten = better_than_ours(rows)
    lines.append(claim(f"cells in which another software policy is better: {len(beaten)}",
                        not beaten))  # fmt: skip
    lines += [
        f"  {_cell_text(cell)}: {name} by {gain:.2%}"
        for cell, (name, gain) in sorted(beaten.items(), key=lambda entry: -entry[1][1])
    ]
    plans = [row["plan_seconds"] for row in mine.values() if row["plan_seconds"] is not None]
    if plans:
        lines.append(claim(f"longest planning: {max(plans):.2f} s", max(plans) <= PLAN_SECONDS))
    return lines


def better_than_ours(rows: Sequence[Row]) -> dict[Cell, tuple[str, float]]:
    """Find the cells (trace, tiers, fraction) in which a policy beats `auto` by more than TIE.

    Returns for each of these cells the best policy and the share of `auto`'s step time that this
    policy saves.

    Policies that model hardware, that change the step's work, or that may exceed the budget, are
    not considered.
    """
    mine = {cell_of(row): row["step_seconds"] for row in rows if row["policy"] == OURS}
    found: dict[Cell, tuple[str, float]] = {}
    for row in rows:
        cell, seconds = cell_of(row), row["step_seconds"]
        own = mine.get(cell)
        rival = row["kind"] == "software" and row["policy"] not in (OURS, UNLIMITED)
        if not rival or seconds is None or own is None:
            continue
        gain = 1 - seconds / own
        if gain > TIE and gain > found.get(cell, ("", 0.0))[1]:
            found[cell] = row["policy"], gain
    return found


def failures(rows: Sequence[Row]) -> list[str]:
    """Return a line per policy with failed cells: their number and the first reason."""
    lines = []
    for name, mine in by_policy(rows).items():
        notes = [row["note"] for row in mine if row["step_seconds"] is None]
        if notes:
            lines.append(f"{name}: {len(notes)} of {len(mine)} cells failed, e.g.: {notes[0]}")
    return lines


def claim(text: str, holds: bool) -> str:
    """Format one claim and whether it holds."""
    return f"{'holds' if holds else 'DOES NOT HOLD'}: {text}"


def _cell_text(cell: Cell) -> str:
    return f"{cell[0]}, {cell[1]}, {cell[2]:.0%}"


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
