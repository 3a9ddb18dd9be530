# SPDX-License-Identifier: Apache-2.0
"""Simulate every policy on nine models: `python -m tests.bench.policies`.

A benchmark cell combines one of nine traces, one of two presets and one of three fast fractions.
Everything is simulated; only planning time is measured. Writes build/bench/policies.json, prints
tables and draws plots. Traces come from build/bench/traces; missing ones are recorded first. If a
policy fails in a cell, its row says why, and the run continues. After the last cell, claims that
papers have published are checked against the rows (claims.py); claims.json holds the verdicts. At
the end `auto` plans a huge synthetic step.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import lru_cache
from pathlib import Path

from sentineld.base.errors import SentinelError
from sentineld.host.presets import PRESETS, preset_tiers
from sentineld.model.profile import Profile
from sentineld.model.tiers import Tiers
from sentineld.plan.policy import Hardware, Policy, Rewriting
from sentineld.policies.bounds.of_policy import bound_seconds_of
from sentineld.policies.bounds.step_time import bound_seconds
from sentineld.policies.registry import names, policy
from sentineld.profile.trace import profile_of
from sentineld.profile.trace_file import load_trace
from sentineld.simulate.simulate import STEPS_MAX, simulate
from tests.bench.claims import checked, claims_table
from tests.bench.huge import plan_huge_step, summary_line
from tests.bench.models import MODELS
from tests.bench.policy_figures import Cell, Row, cell_of, failures, policies_table, verdicts
from tests.bench.results import write
from tests.bench.traces import ROOT, TRACES

BENCH = ROOT / "build" / "bench"
TIERS = ("cxl", "optane")
FRACTIONS = (0.1, 0.2, 0.3)


def record_missing(folder: Path, models: Sequence[str]) -> None:
    """Record the missing traces."""
    missing = [model for model in models if not (folder / f"{model}.npz").exists()]
    print(f"traces: {len(models) - len(missing)} of {len(models)} found in {folder}", flush=True)
    if missing:
        print(f"recording {', '.join(missing)}", flush=True)
        command = [sys.executable, "-m", "tests.bench.traces", *missing, "-o", str(folder)]
        subprocess.run(command, check=True, cwd=ROOT)


@lru_cache(maxsize=2)
def step_of(trace: Path) -> tuple[Profile, int]:
    """Return (profile of the trace's step, number of training threads)."""
    found = load_trace(trace)
    return profile_of(found), found.threads


def cell_rows(
    trace: Path,
    tiers_name: str,
    fraction: float,
    policies: Sequence[str],
    steps_max: int = STEPS_MAX,
) -> list[Row]:
    """Simulate one cell, with at most steps_max steps per policy; return a row per policy."""
    _, threads = step_of(trace)
    tiers = preset_tiers(tiers_name, threads)
    return rows_of(trace, tiers_name, tiers, fraction, policies, steps_max)


def rows_of(
    trace: Path,
    tiers_name: str,
    tiers: Tiers,
    fraction: float,
    policies: Sequence[str],
    steps_max: int = STEPS_MAX,
) -> list[Row]:
    """Simulate one cell with these tiers; see cell_rows()."""
    profile, threads = step_of(trace)
    budget_bytes = int(profile.peak_bytes * fraction)
    notes: list[str] = []
    least: float | None = None
    try:
        least = bound_seconds(profile, tiers, budget_bytes)
    except SentinelError as error:
        notes.append(f"no bound: {error.message}")
    # One simulation gives the all-fast and all-slow times for all policies.
    slow = simulate(profile, policy("slow-only"), tiers, budget_bytes, threads=threads)
    rows = []
    for name in policies:
        row: Row = {
            "trace": trace.stem,
            "tiers": tiers_name,
            "fast_fraction": fraction,
            "policy": name,
            "kind": kind_of(policy(name)),
            "step_seconds": None,
            "bound_seconds": least,
            "fast_only_seconds": slow.fast_only_seconds,
            "slow_only_seconds": slow.slow_only_seconds,
            "plan_seconds": None,
            "bytes_promoted": None,
            "bytes_demoted": None,
            "modelled_joules": None,
            "fast_only_modelled_joules": slow.fast_only_joules,
            "note": "",
        }
        reasons = notes
        if isinstance(policy(name), Rewriting):
            try:
                row["bound_seconds"] = bound_seconds_of(policy(name), profile, tiers, budget_bytes)
            except SentinelError as error:
                row["bound_seconds"] = None
                reasons = [*notes, f"no bound: {error.message}"]
        rows.append(row | _figures(name, profile, tiers, budget_bytes, threads, steps_max, reasons))
    return rows


def kind_of(found: Policy) -> str:
    """The kind of policy: "hardware", "modelled" if it changes the step's work, or "software"."""
    if isinstance(found, Hardware):
        return "hardware"
    return "modelled" if isinstance(found, Rewriting) else "software"


def _figures(
    name: str,
    profile: Profile,
    tiers: Tiers,
    budget_bytes: int,
    threads: int,
    steps_max: int,
    notes: Sequence[str],
) -> Row:
    clock, by = time.perf_counter, policy(name)
    try:
        found = simulate(
            profile, by, tiers, budget_bytes, steps_max=steps_max, clock=clock, threads=threads
        )
    except SentinelError as error:
        return {"note": "; ".join([error.message, *notes])}
    except Exception as error:  # a bug in one policy must not stop the others' measurement
        return {"note": "; ".join([f"error: {type(error).__name__}: {error}", *notes])}
    return {
        "step_seconds": found.step_seconds,
        "plan_seconds": found.plan_seconds,
        "bytes_promoted": round(found.bytes_promoted),
        "bytes_demoted": round(found.bytes_demoted),
        "modelled_joules": found.joules,
        "note": "; ".join([*found.notes, *notes]),
    }


def all_rows(cells: Sequence[tuple[Path, str, float]], policies: Sequence[str],
             jobs: int) -> Iterator[list[Row]]:  # fmt: skip
    """Yield the rows of one cell after another, in the order in which cells are completed."""
    if jobs == 1:
        for cell in cells:
            yield cell_rows(*cell, policies)
        return
    with ProcessPoolExecutor(jobs) as pool:
        waiting = [pool.submit(cell_rows, *cell, policies) for cell in cells]
        for done in as_completed(waiting):
            yield done.result()


def earlier_rows(file: Path, policies: Sequence[str]) -> list[Row]:
    """Return an earlier run's rows for these policies. Cells that lack a row for one of
    these policies are left out."""
    if not file.exists():
        return []
    rows: list[Row] = json.loads(file.read_text())["rows"]
    of_cell: dict[Cell, set[str]] = {}
    for row in rows:
        of_cell.setdefault(cell_of(row), set()).add(row["policy"])
    return [
        row for row in rows if row["policy"] in policies and of_cell[cell_of(row)] >= set(policies)
    ]


def write_rows(rows: list[Row], file: Path, synthetic: Row | None = None) -> None:
    """Sort the rows by trace, tiers, fraction and policy, and write them.

    synthetic: the result for the huge step.
    """
    order = list(MODELS)
    rows.sort(key=lambda row: (order.index(row["trace"]), *cell_of(row)[1:], row["policy"]))
    write(file, {"rows": rows} | ({} if synthetic is None else {"huge": synthetic}))


def report(rows: Sequence[Row]) -> str:
    """Format the table of all policies, the failed cells, and the claims about `auto`."""
    parts = [policies_table(rows)]
    if failed := failures(rows):
        parts.append("Failed cells:\n" + "\n".join(failed))
    if claims := verdicts(rows):
        parts.append("The policy auto:\n" + "\n".join(claims))
    return "\n\n".join(parts)


def add_cell_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that select cells and the number of parallel jobs."""
    parser.add_argument("--traces", type=Path, default=TRACES)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--tiers", nargs="+", choices=list(PRESETS), default=list(TIERS))
    parser.add_argument("--fractions", nargs="+", type=float, default=list(FRACTIONS))
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)


def chosen_cells(arguments: argparse.Namespace) -> list[tuple[Path, str, float]]:
    """Return (trace, tiers, fraction) of each selected cell; record missing traces."""
    record_missing(arguments.traces, arguments.models)
    return [
        (arguments.traces / f"{model}.npz", tiers, fraction)
        for model in arguments.models
        for tiers in arguments.tiers
        for fraction in arguments.fractions
    ]


def main() -> None:
    """Simulate all chosen cells; write the result file, print the tables and draw the plots."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_cell_options(parser)
    parser.add_argument("-o", "--output", type=Path, default=BENCH / "policies.json")
    parser.add_argument("--policies", nargs="+", choices=names(), default=names())
    parser.add_argument("--resume", action="store_true", help="keep the cells of an earlier run")
    parser.add_argument("--no-plots", action="store_true")
    parser.add_argument("--no-huge", action="store_true", help="skip the synthetic step")
    arguments = parser.parse_args()
    wanted = chosen_cells(arguments)
    output: Path = arguments.output
    output.parent.mkdir(parents=True, exist_ok=True)
    rows = earlier_rows(output, arguments.policies) if arguments.resume else []
    done = {cell_of(row) for row in rows}
    cells = [cell for cell in wanted if (cell[0].stem, *cell[1:]) not in done]
    began_s = time.monotonic()
    for number, found in enumerate(all_rows(cells, arguments.policies, arguments.jobs), 1):
        rows += found
        write_rows(rows, output)
        trace, tiers, fraction = cell_of(found[0])
        print(
            f"{number}/{len(cells)} cells, {time.monotonic() - began_s:.0f} s: "
            f"{trace}, {tiers}, {fraction:.0%}",
            flush=True,
        )
    print(f"\n{report(rows)}", flush=True)
    claims = checked(rows)
    write(output.with_name("claims.json"), {"claims": claims})
    print(f"\n{claims_table(claims)}", flush=True)
    if not arguments.no_huge:
        synthetic = plan_huge_step()
        write_rows(rows, output, synthetic)
        print(summary_line(synthetic))
    print(f"\nwrote {output}", flush=True)
    if not arguments.no_plots:
        from tests.bench.policy_plots import draw

        for picture in draw(
            rows, lambda name: step_of(arguments.traces / f"{name}.npz"), output.parent
        ):
            print(f"drew {picture}", flush=True)


if __name__ == "__main__":
    main()
