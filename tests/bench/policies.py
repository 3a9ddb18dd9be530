# SPDX-License-Identifier: Apache-2.0
"""Nine traces, two presets, three fast fractions, every policy: `python -m tests.bench.policies`.

All in the simulator: nothing is measured but how long planning takes. Writes
build/bench/policies.json, prints its tables, draws its pictures. Traces come from
build/bench/traces; those that are not there are recorded first. A policy that
fails has a note in its cell, and the others go on. At the end `auto` plans a huge
synthetic step.
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
from sentineld.plan.policy import Hardware
from sentineld.policies.bounds.step_time import bound_seconds
from sentineld.policies.registry import names, policy
from sentineld.profile.trace import profile_of
from sentineld.profile.trace_file import load_trace
from sentineld.simulate.simulate import simulate
from tests.bench.huge import huge, words
from tests.bench.models import MODELS
from tests.bench.policy_figures import Cell, Row, cell_of, failures, policies_table, standing
from tests.bench.results import write
from tests.bench.traces import ROOT, TRACES

BENCH = ROOT / "build" / "bench"
TIERS = ("cxl", "optane")
FRACTIONS = (0.1, 0.2, 0.3)


def recorded(folder: Path, models: Sequence[str]) -> None:
    """Record the traces that are missing; say which were there."""
    missing = [model for model in models if not (folder / f"{model}.npz").exists()]
    print(f"traces: {len(models) - len(missing)} of {len(models)} from {folder}", flush=True)
    if missing:
        print(f"recording {', '.join(missing)}, one after the other", flush=True)
        command = [sys.executable, "-m", "tests.bench.traces", *missing, "-o", str(folder)]
        subprocess.run(command, check=True, cwd=ROOT)


@lru_cache(maxsize=2)
def step_of(trace: Path) -> tuple[Profile, int]:
    """(what the trace's step does, threads of the training)."""
    found = load_trace(trace)
    threads = str(found.facts.get("threads", ""))
    return profile_of(found), int(threads) if threads.isdigit() and int(threads) > 0 else 1


def cell_rows(trace: Path, tiers_name: str, fraction: float, policies: Sequence[str]) -> list[Row]:
    """The rows of a cell, a policy each."""
    profile, threads = step_of(trace)
    tiers, budget_bytes = preset_tiers(tiers_name, threads), int(profile.peak_bytes * fraction)
    notes: list[str] = []
    least: float | None = None
    try:
        least = bound_seconds(profile, tiers, budget_bytes)
    except SentinelError as error:
        notes.append(f"no bound: {error.message}")
    # What a step takes with everything on either tier does not depend on the policy.
    slow = simulate(profile, policy("slow-only"), tiers, budget_bytes)
    rows = []
    for name in policies:
        row: Row = {
            "trace": trace.stem,
            "tiers": tiers_name,
            "fast_fraction": fraction,
            "policy": name,
            "kind": "hardware" if isinstance(policy(name), Hardware) else "software",
            "step_seconds": None,
            "bound_seconds": least,
            "fast_only_seconds": slow.fast_only_seconds,
            "slow_only_seconds": slow.slow_only_seconds,
            "plan_seconds": None,
            "bytes_promoted": None,
            "bytes_demoted": None,
            "note": "",
        }
        rows.append(row | _figures(name, profile, tiers, budget_bytes, notes))
    return rows


def _figures(
    name: str, profile: Profile, tiers: Tiers, budget_bytes: int, notes: Sequence[str]
) -> Row:
    try:
        found = simulate(profile, policy(name), tiers, budget_bytes, clock=time.perf_counter)
    except SentinelError as error:
        return {"note": "; ".join([error.message, *notes])}
    except Exception as error:  # one policy's bug is no reason to lose the others' figures
        return {"note": "; ".join([f"error: {type(error).__name__}: {error}", *notes])}
    return {
        "step_seconds": found.step_seconds,
        "plan_seconds": found.plan_seconds,
        "bytes_promoted": round(found.bytes_promoted),
        "bytes_demoted": round(found.bytes_demoted),
        "note": "; ".join([*found.notes, *notes]),
    }


def all_rows(cells: Sequence[tuple[Path, str, float]], policies: Sequence[str],
             jobs: int) -> Iterator[list[Row]]:  # fmt: skip
    """Each cell's rows, in the order in which they are ready."""
    if jobs == 1:
        for cell in cells:
            yield cell_rows(*cell, policies)
        return
    with ProcessPoolExecutor(jobs) as pool:
        waiting = [pool.submit(cell_rows, *cell, policies) for cell in cells]
        for done in as_completed(waiting):
            yield done.result()


def kept_rows(file: Path, policies: Sequence[str]) -> list[Row]:
    """Rows of an earlier run's cells that hold all of these policies."""
    if not file.exists():
        return []
    rows: list[Row] = json.loads(file.read_text())["rows"]
    of_cell: dict[Cell, set[str]] = {}
    for row in rows:
        of_cell.setdefault(cell_of(row), set()).add(row["policy"])
    return [
        row for row in rows if row["policy"] in policies and of_cell[cell_of(row)] >= set(policies)
    ]


def written(rows: list[Row], file: Path, synthetic: Row | None = None) -> None:
    """Write the rows in the order of traces, tiers, fractions and policies. synthetic: how the huge
    step was planned."""
    order = list(MODELS)
    rows.sort(key=lambda row: (order.index(row["trace"]), *cell_of(row)[1:], row["policy"]))
    write(file, {"rows": rows} | ({} if synthetic is None else {"huge": synthetic}))


def report(rows: Sequence[Row]) -> str:
    """The tables, and what they say of `auto`."""
    parts = [policies_table(rows)]
    if failed := failures(rows):
        parts.append("Without a step:\n" + "\n".join(failed))
    if claims := standing(rows):
        parts.append("The policy auto:\n" + "\n".join(claims))
    return "\n\n".join(parts)


def add_cells(parser: argparse.ArgumentParser) -> None:
    """The options that say which cells there are, and how many run at a time."""
    parser.add_argument("--traces", type=Path, default=TRACES)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--tiers", nargs="+", choices=list(PRESETS), default=list(TIERS))
    parser.add_argument("--fractions", nargs="+", type=float, default=list(FRACTIONS))
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)


def chosen_cells(arguments: argparse.Namespace) -> list[tuple[Path, str, float]]:
    """(trace, tiers, fraction) of each; records the traces that are missing."""
    recorded(arguments.traces, arguments.models)
    return [
        (arguments.traces / f"{model}.npz", tiers, fraction)
        for model in arguments.models
        for tiers in arguments.tiers
        for fraction in arguments.fractions
    ]


def main() -> None:
    """Run them all."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_cells(parser)
    parser.add_argument("-o", "--output", type=Path, default=BENCH / "policies.json")
    parser.add_argument("--policies", nargs="+", choices=names(), default=names())
    parser.add_argument("--resume", action="store_true", help="keep the cells of an earlier run")
    parser.add_argument("--no-plots", action="store_true")
    parser.add_argument("--no-huge", action="store_true", help="leave out the synthetic step")
    arguments = parser.parse_args()
    wanted = chosen_cells(arguments)
    output: Path = arguments.output
    output.parent.mkdir(parents=True, exist_ok=True)
    rows = kept_rows(output, arguments.policies) if arguments.resume else []
    done = {cell_of(row) for row in rows}
    cells = [cell for cell in wanted if (cell[0].stem, *cell[1:]) not in done]
    began_s = time.monotonic()
    for number, found in enumerate(all_rows(cells, arguments.policies, arguments.jobs), 1):
        rows += found
        written(rows, output)
        trace, tiers, fraction = cell_of(found[0])
        print(
            f"{number}/{len(cells)} cells, {time.monotonic() - began_s:.0f} s: "
            f"{trace}, {tiers}, {fraction:.0%}",
            flush=True,
        )
    print(f"\n{report(rows)}", flush=True)
    if not arguments.no_huge:
        synthetic = huge()
        written(rows, output, synthetic)
        print(words(synthetic))
    print(f"\nwrote {output}", flush=True)
    if not arguments.no_plots:
        from tests.bench.policy_plots import draw

        for picture in draw(
            rows, lambda name: step_of(arguments.traces / f"{name}.npz"), output.parent
        ):
            print(f"drew {picture}", flush=True)


if __name__ == "__main__":
    main()
