# SPDX-License-Identifier: Apache-2.0
"""The verb advise: shows how the step time depends on the amount of fast memory, on several kinds
of machines."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import click

from sentineld.advise.curve import Curves, Point, knee_of
from sentineld.advise.machines import TRAININGS_MAX, Machine
from sentineld.advise.picture import draw_curves
from sentineld.advise.pool import simulated_points, usable_cpus
from sentineld.advise.words import (
    KNEE_MARK,
    assumptions,
    bound_table,
    sentences,
    share_text,
    table,
)
from sentineld.base.errors import SentinelError
from sentineld.base.units import FastBudget, format_bytes
from sentineld.cli.output import json_option, print_json, print_table
from sentineld.cli.simulate import threads_option, trace_argument
from sentineld.config import TierOverrides
from sentineld.host.presets import PRESETS, is_tiers_file, named_tiers
from sentineld.machine.paged import disk_tiers
from sentineld.model.tiers import Tiers
from sentineld.policies.registry import policy as policy_by_name
from sentineld.profile.trace import profile_of
from sentineld.profile.trace_file import load_trace
from sentineld.report.plots import require_picture
from sentineld.simulate.simulate import require_accesses

LOCAL_DISK = "nvme"
MEASURED_DISK = "disk"
DEFAULT_TIERS = ("cxl", "remote", "optane", LOCAL_DISK)
RANGE_STEP = 10
WIDTH = 80


@click.command()
@trace_argument
@click.option(
    "--tiers",
    "tiers_names",
    multiple=True,
    metavar="PRESET|FILE",
    help=f"A preset ({', '.join(PRESETS)}), or a .toml file whose [tiers] gives the bandwidths. "
    f"Can be repeated.  [default: {', '.join(DEFAULT_TIERS)}]",
)
@click.option(
    "--disk",
    type=click.Path(path_type=Path),
    metavar="DIRECTORY",
    help="Measure the disk of this directory, as the daemon does on paged tiers, and use the "
    f"measured figures instead of the preset {LOCAL_DISK}.",
)
@click.option(
    "--fast",
    "amounts",
    multiple=True,
    default=("10%..90%",),
    show_default=True,
    metavar="AMOUNT|A..B[/STEP]",
    help="Fast memory of the machine: a share of the peak, such as 20%; a size, such as 48MiB; or "
    f"a range of shares, by default in steps of {RANGE_STEP}%. Can be repeated.",
)
@click.option(
    "--within",
    default="5%",
    show_default=True,
    metavar="SHARE",
    help="An amount of fast memory is enough if the step takes at most this much longer than with "
    "fast memory only.",
)
@click.option("--policy", default="auto", show_default=True, help="Policy that makes the plans.")
@threads_option
@click.option(
    "--second/--no-second",
    default=True,
    show_default=True,
    help="Also simulate two such trainings that share the machine.",
)
@click.option(
    "--bound", is_flag=True, help="Also compute the step-time bounds; this takes more time."
)
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    help="Number of processes that simulate.  [default: one for each usable CPU]",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Draw the curves into this .png or .svg file (needs matplotlib).",
)
@json_option
def advise(
    trace: Path,
    tiers_names: tuple[str, ...],
    disk: Path | None,
    amounts: tuple[str, ...],
    within: str,
    policy: str,
    threads: int | None,
    second: bool,
    bound: bool,
    jobs: int | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Show how much fast memory the training recorded in TRACE needs.

    `sentinelctl record` writes TRACE, on any machine. The recorded step is simulated, as
    by `sentinelctl simulate`, for each combination of an amount of fast memory and a kind
    of slow memory. By default, one of the kinds is a disk. The tables show the time of a
    step, divided by its time if all memory were fast. Ctrl-C ends the simulation; the
    results so far are printed. docs/how-to/advise.md explains the results and their
    assumptions.
    """
    policy_by_name(policy)
    excess = _excess(within)
    if output is not None:
        require_picture(output)
    recorded = load_trace(trace)
    profile = profile_of(recorded)
    require_accesses(profile)
    threads = threads or recorded.threads
    curves = Curves(
        profile,
        policy,
        tuple(_machines(tiers_names, disk, threads)),
        tuple(sorted({size for text in amounts for size in _sizes(text, profile.peak_bytes)})),
        TRAININGS_MAX if second else 1,
    )
    problem = _simulate(curves, bound, jobs or usable_cpus())
    failures = [point.error for point in curves.points.values() if point.slowdown is None]
    if failures and len(failures) == len(curves.points) and failures[0] is not None:
        raise failures[0]
    if curves.points:
        if as_json:
            print_json(_json(curves, trace, threads, excess))
        else:
            _print(curves, threads, excess, bound)
        if output is not None:
            draw_curves(curves, excess, trace.name, output)
            click.echo(f"wrote {output}", err=as_json)
    if problem is not None:
        done = f"{len(curves.points)} of {len(curves.questions())} steps were simulated"
        click.echo(f"incomplete: {done}", err=True)
        raise problem


def _simulate(curves: Curves, bound: bool, processes: int) -> BaseException | None:
    """Add all points to the curves; return the error or the interrupt that ended the simulation
    early, or None."""
    wanted = curves.questions()
    found = simulated_points(curves.profile, curves.policy_name, wanted, bound, processes)
    try:
        with (
            closing(found),
            click.progressbar(
                length=len(wanted), label="simulating", file=sys.stderr, show_pos=True
            ) as bar,
        ):
            for point in found:
                curves.add(point)
                bar.update(1)
    except KeyboardInterrupt:
        return click.Abort()
    except SentinelError as error:
        return error
    return None


def _machines(names: Sequence[str], disk: Path | None, threads: int) -> Iterable[Machine]:
    chosen = list(names or DEFAULT_TIERS)
    if disk is not None:
        chosen = [name for name in chosen if name != LOCAL_DISK]
    taken = set() if disk is None else {MEASURED_DISK}
    for name in chosen:
        is_file = is_tiers_file(name)
        label = Path(name).stem if is_file else name
        if label in taken:
            raise SentinelError(
                "usage",
                f"two machines are named {label}",
                "give each of --tiers once, or rename the file",
            )
        taken.add(label)
        yield Machine(label, named_tiers(name, threads), None if is_file else threads)
    if disk is not None:
        yield Machine(MEASURED_DISK, _measured(disk))


def _measured(folder: Path) -> Tiers:
    click.echo(f"measuring the disk of {folder}", err=True)
    try:
        tiers = disk_tiers(folder, TierOverrides(), shutil.disk_usage(folder).free)
    except (OSError, SentinelError) as error:
        reason = f"{folder}: {error.strerror}" if isinstance(error, OSError) else error.message
        raise SentinelError(
            "failed",
            f"cannot measure the disk: {reason}",
            "name a directory on a local disk in which you may create a file",
        ) from None
    slow = tiers.tiers[1]
    click.echo(
        f"it reads {slow.read_bytes_per_s / 1e9:.2f} GB/s and writes"
        f" {slow.write_bytes_per_s / 1e9:.2f} GB/s; a fault takes"
        f" {slow.read_latency_ns / 1e3:.0f} us plus the time to transfer its bytes",
        err=True,
    )
    return tiers


def _sizes(text: str, peak_bytes: int) -> list[int]:
    """The amounts of fast memory, in bytes, given by one value of --fast."""
    if ".." not in text:
        return [FastBudget.parse(text).resolve(peak_bytes)]
    match = re.fullmatch(r"\s*(\d+)%?\.\.(\d+)%(?:/(\d+)%?)?\s*", text)
    first, last, step = (int(part or RANGE_STEP) for part in match.groups()) if match else (0, 0, 0)
    if not (0 < first <= last <= 100 and step > 0):
        raise SentinelError(
            "usage", f"{text!r} is not a range of shares", "write it like 10%..90% or 30%..40%/2%"
        )
    return [
        FastBudget.parse(f"{share}%").resolve(peak_bytes) for share in range(first, last + 1, step)
    ]


def _excess(text: str) -> float:
    """The value of --within as a number."""
    match = re.fullmatch(r"\s*(\d*\.?\d+)(%?)\s*", text)
    value = float(match[1]) / (100 if match[2] else 1) if match else -1.0
    if not 0 <= value <= 1:
        raise SentinelError(
            "usage", f"--within {text!r} is not a share of the step time", "write it like 5%"
        )
    return value


def _print(curves: Curves, threads: int, excess: float, bound: bool) -> None:
    peak = format_bytes(curves.profile.peak_bytes)
    click.echo(
        f"{curves.policy_name}, {threads} thread{'s' if threads > 1 else ''}, peak {peak}, "
        f"all-fast step {curves.fast_only_seconds:.4f} s"
    )
    numbers = sorted({point.trainings for point in curves.points.values()})
    for trainings in numbers:
        what = "step / all-fast step"
        if trainings > 1:
            what += f" of each of {trainings} trainings that share the machine"
        click.echo(f"\n{what}")
        print_table(*table(curves, trainings, excess))
        if bound:
            click.echo("\nthe bound, which no policy can beat")
            print_table(*bound_table(curves, trainings))
    click.echo(
        f"\n{KNEE_MARK} enough: from here on, the step is at most {100 * excess:g}% longer than"
        " all-fast\n"
    )
    for sentence in [*sentences(curves, excess), *assumptions(threads, numbers[-1])]:
        click.echo(textwrap.fill(sentence, WIDTH))
    for note in _notes(curves):
        click.echo(f"note: {note}")


def _notes(curves: Curves) -> list[str]:
    """The different errors of the points. Each error is preceded by the first point at which it
    occurred."""
    found: dict[str, str] = {}
    for point in curves.points.values():
        if point.error is not None:
            at = f"{point.machine}, {share_text(curves, point.fast_bytes)}"
            if point.trainings > 1:
                at += f", {point.trainings} trainings"
            found.setdefault(point.error.message, at)
    return [f"{at}: {message}" for message, at in found.items()]


def _json(curves: Curves, trace: Path, threads: int, excess: float) -> dict[str, Any]:
    return {
        "trace": str(trace),
        "policy": curves.policy_name,
        "threads": threads,
        "peak_bytes": curves.profile.peak_bytes,
        "fast_only_seconds": curves.fast_only_seconds,
        "within": excess,
        "complete": len(curves.points) == len(curves.questions()),
        "machines": [_machine_json(curves, machine, excess) for machine in curves.machines],
        "advice": sentences(curves, excess),
        "notes": [*assumptions(threads, curves.trainings_max), *_notes(curves)],
    }


def _machine_json(curves: Curves, machine: Machine, excess: float) -> dict[str, Any]:
    def point_json(point: Point) -> dict[str, Any]:
        all_fast_s = curves.fast_only_seconds
        return {
            "fast_bytes": point.fast_bytes,
            "fast_fraction": curves.share(point.fast_bytes),
            "step_seconds": None if point.slowdown is None else point.slowdown * all_fast_s,
            "slowdown": point.slowdown,
            "bound_seconds": None if point.bound is None else point.bound * all_fast_s,
            "bytes_promoted": point.bytes_promoted,
            "bytes_demoted": point.bytes_demoted,
            "note": "" if point.error is None else point.error.message,
        }

    found: dict[str, Any] = {"tiers": machine.name, "paged": machine.tiers.paged, "curves": []}
    for trainings in range(1, curves.trainings_max + 1):
        tiers, points = machine.share(trainings), curves.curve(machine.name, trainings)
        knee = knee_of(points, excess)
        found["curves"].append(
            {
                "trainings": trainings,
                "slow_read_bytes_per_s": tiers.tiers[1].read_bytes_per_s,
                "slow_write_bytes_per_s": tiers.tiers[1].write_bytes_per_s,
                "migration_bytes_per_s": tiers.migration_bytes_per_s,
                "knee_bytes": None if knee is None else knee.point.fast_bytes,
                "points": [point_json(point) for point in points],
            }
        )
    return found
