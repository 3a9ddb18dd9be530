# SPDX-License-Identifier: Apache-2.0
"""Curves as a table and as sentences."""

from __future__ import annotations

from collections.abc import Callable

from sentineld.advise.curve import Curves, Point, knee_of
from sentineld.base.units import format_bytes
from sentineld.host.presets import SOCKET_THREADS

KNEE_MARK = "*"


def share_text(curves: Curves, size_bytes: int) -> str:
    """Fast memory as a share of the peak, such as "20%"."""
    return f"{100 * curves.share(size_bytes):.3g}%"


def table(curves: Curves, trainings: int, excess: float) -> tuple[list[str], list[list[str]]]:
    """(header, rows): a row for each amount of fast memory, with the slowdown on each machine.

    The knee of each machine's curve (see Knee in curve.py) is marked. "-" means that the policy has
    no plan, and "?" that the point was not simulated.
    """
    knees = {
        knee.point
        for machine in curves.machines
        if (knee := knee_of(curves.curve(machine.name, trainings), excess)) is not None
    }

    def entry(point: Point | None) -> str:
        if point is None:
            return "?"
        return _figure(point.slowdown) + (KNEE_MARK if point in knees else "")

    return _table(curves, trainings, entry)


def bound_table(curves: Curves, trainings: int) -> tuple[list[str], list[list[str]]]:
    """(header, rows) as in table(), but each cell is the step-time bound divided by the all-fast
    step time."""
    return _table(curves, trainings, lambda point: "?" if point is None else _figure(point.bound))


def _table(
    curves: Curves, trainings: int, entry: Callable[[Point | None], str]
) -> tuple[list[str], list[list[str]]]:
    names = [machine.name for machine in curves.machines]
    rows = [
        [
            share_text(curves, size),
            format_bytes(size),
            *(entry(curves.points.get((name, trainings, size))) for name in names),
        ]
        for size in curves.sizes
    ]
    return ["FAST", "BYTES", *names], rows


def sentences(curves: Curves, excess: float) -> list[str]:
    """For each machine that has simulated points: the fast memory that a training needs there,
    alone and beside a second training."""
    return [
        " ".join(_of_machine(curves, machine.name, excess))
        for machine in curves.machines
        if curves.curve(machine.name, 1)
    ]


def _of_machine(curves: Curves, name: str, excess: float) -> list[str]:
    alone = curves.curve(name, 1)
    knee = knee_of(alone, excess)
    point = alone[-1] if knee is None else knee.point
    verdict = "is not enough" if knee is None else "is enough"
    said = [f"{name}: {_size(curves, point)} {verdict}: {_takes(point)}"]
    if knee is not None and knee.below is not None:
        said[0] += f"; {share_text(curves, knee.below.fast_bytes)} is not: {_takes(knee.below)}"
    said[0] += "."
    beside = curves.points.get((name, 2, point.fast_bytes))
    if beside is not None:
        said.append(f"With a second training on the same machine, each: {_takes(beside)}.")
    shared = curves.curve(name, 2)
    if shared:
        both = knee_of(shared, excess)
        if both is None:
            said.append(f"For both, {share_text(curves, shared[-1].fast_bytes)} is not enough.")
        else:
            said.append(f"For both, {_size(curves, both.point)} is enough.")
    return said


def assumptions(threads: int, trainings_max: int) -> list[str]:
    """The assumptions behind the figures, as sentences."""
    said = []
    if trainings_max > 1:
        said.append(
            "Two trainings: they are identical and run on separate cores. Each gets half of the"
            " fast memory, of the migration bandwidth and of the disk's bandwidth, as if both"
            " moved pages all the time."
        )
        if 2 * threads > SOCKET_THREADS:
            said.append(
                f"Together they have more than {SOCKET_THREADS} threads, so they also divide a"
                " preset's bandwidths of memory; the all-fast time does not include this."
            )
    return said


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _size(curves: Curves, point: Point) -> str:
    return f"{share_text(curves, point.fast_bytes)} of the peak ({format_bytes(point.fast_bytes)})"


def _takes(point: Point) -> str:
    return "no plan" if point.slowdown is None else f"{point.slowdown:.3f} times all-fast"
