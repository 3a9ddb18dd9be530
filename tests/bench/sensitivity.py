# SPDX-License-Identifier: Apache-2.0
"""Compares the policies under variants of the timing model: `python -m tests.bench.sensitivity`.

Writes build/bench/sensitivity.json: a row for each trace, variant and policy, and for each variant
the slowdowns of `auto`, of the best other policy and of the step-time bound. The key `claims`
compares the results under the variant COMPUTE_BOUND with figures that papers have published. Rows
have the same fields as those of tests.bench.policies, but their field `tiers` holds the name of the
variant.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path

from sentineld.host.presets import SOCKET_THREADS, preset_tiers
from sentineld.model.tiers import Overlap, Tiers
from sentineld.policies.registry import names
from tests.bench.claims import FRACTION, checked, claims_table
from tests.bench.figures import table
from tests.bench.models import MODELS
from tests.bench.policies import BENCH, record_missing, rows_of, step_of
from tests.bench.policy_figures import (
    OURS,
    TIE,
    UNLIMITED,
    Row,
    better_than_ours,
    by_policy,
    cell_of,
    claim,
    geometric_mean,
    slowdown,
)
from tests.bench.results import Json, write
from tests.bench.traces import TRACES


@dataclass(frozen=True)
class Variant:
    """Assumptions about the machine that differ from those of the preset `cxl`."""

    text: str
    preset: str = "cxl"
    # Number of threads that determines the training's share of the bandwidths; None: the number
    # with which the trace was recorded.
    threads: int | None = None
    overlap: Overlap = Overlap.NONE
    moves_yield: bool = False

    def tiers(self, threads: int) -> Tiers:
        """The tiers for a training of this number of threads."""
        tiers = preset_tiers(self.preset, self.threads or threads)
        return replace(tiers, overlap=self.overlap, moves_yield=self.moves_yield)


COMPUTE_BOUND = "compute-bound"
"""The variant that comes closest to the machine of the Sentinel paper: a socket with Optane, on
which computation limits the speed of the training. The published claims are checked under this
variant. The paper's batch sizes are not known exactly, so those of the traces may differ."""

VARIANTS = {
    "cxl": Variant("the preset cxl"),
    "compute": Variant("computation hides slow accesses", overlap=Overlap.COMPUTE),
    "tiers": Variant("both tiers' bandwidths are used concurrently", overlap=Overlap.TIERS),
    "yield": Variant("no moves during accesses to the slow tier", moves_yield=True),
    "tiers+yield": Variant("tiers and yield together", overlap=Overlap.TIERS, moves_yield=True),
    "cxl-4k": Variant("pages of 4 KiB move one by one", "cxl-4k"),
    "remote": Variant("the DRAM of another socket is the slow tier", "remote"),
    "optane": Variant("Optane is the slow tier", "optane"),
    "socket": Variant("a whole socket's bandwidths, stretch times as recorded", "cxl",
                      SOCKET_THREADS),
    COMPUTE_BOUND: Variant("a whole socket, Optane, computation hides slow accesses", "optane",
                           SOCKET_THREADS, Overlap.COMPUTE),
}  # fmt: skip


def variant_rows(trace: Path, name: str, policies: Sequence[str]) -> list[Row]:
    """Simulate a trace under a variant; return a row per policy."""
    _, threads = step_of(trace)
    return rows_of(trace, name, VARIANTS[name].tiers(threads), FRACTION, policies)


def summary_of(rows: Sequence[Row], variant: str) -> Json:
    """Geometric means over the traces of one variant: step time / all-fast step time.

    `best_other` is the best policy other than `auto`. Only policies that run in software, keep the
    budget and have a plan for every trace are considered; None if there is no such policy. The
    slowdown of `auto` is None if `auto` has no plan for some trace.
    """
    mine = [row for row in rows if row["tiers"] == variant]
    means = {}
    for name, own in by_policy(mine).items():
        if all(row["step_seconds"] is not None for row in own):
            means[name] = geometric_mean(map(slowdown, own))
    others = [
        row["policy"]
        for row in mine
        if row["kind"] == "software"
        and row["policy"] not in (OURS, UNLIMITED)
        and row["policy"] in means
    ]
    best = min(others, key=lambda name: means[name] or math.inf, default=None)
    bounds = {
        row["trace"]: row["bound_seconds"] / row["fast_only_seconds"]
        for row in mine
        if row["bound_seconds"] is not None
    }
    return {
        "variant": variant,
        "text": VARIANTS[variant].text,
        "traces": len({row["trace"] for row in mine}),
        "auto": means.get(OURS),
        "best_other": best,
        "best_other_slowdown": means[best] if best else None,
        "bound": geometric_mean(bounds.values()),
        "bounds": len(bounds),
    }


def report(rows: Sequence[Row], summaries: Sequence[Json]) -> str:
    """Format a line per variant, the ranges over the variants, and whether `auto` is beaten."""
    lines = [
        [
            one["variant"],
            _figure(one["auto"]),
            _figure(one["best_other_slowdown"]),
            one["best_other"] or "-",
            _figure(one["bound"]),
            f"{one['bounds']}/{one['traces']}",
            one["text"],
        ]
        for one in summaries
    ]
    head = ["variant", "auto", "best other", "", "bound", "bounds", ""]
    parts = ["step / all-fast step, geometric means", table(head, lines)]
    for key, text in (
        ("auto", "auto"),
        ("best_other_slowdown", "the best other policy"),
        ("bound", "the bound"),
    ):
        known = [one[key] for one in summaries if one[key] is not None]
        if known:
            parts.append(f"{text}: {min(known):.3f} to {max(known):.3f}")
    if not any(row["policy"] == OURS for row in rows):
        return "\n".join(parts)
    beaten = better_than_ours(rows)
    parts.append(claim(f"cells in which another policy beats auto by more than {TIE:.1%}: "
                       f"{len(beaten)}", not beaten))  # fmt: skip
    parts += [
        f"  {cell[0]}, {cell[1]}: {name} by {gain:.2%}" for cell, (name, gain) in beaten.items()
    ]
    return "\n".join(parts)


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def main() -> None:
    """Simulate the chosen traces under the chosen variants, write the result file, print a table.

    The exit status is 1 if `auto` is beaten or has no plan for some trace and variant.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", type=Path, default=TRACES)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--policies", nargs="+", choices=names(), default=names())
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("-o", "--output", type=Path, default=BENCH / "sensitivity.json")
    arguments = parser.parse_args()
    record_missing(arguments.traces, arguments.models)
    rows: list[Row] = []
    began_s = time.monotonic()
    with ProcessPoolExecutor(arguments.jobs) as pool:
        waiting = [
            pool.submit(
                variant_rows, arguments.traces / f"{model}.npz", variant, arguments.policies
            )
            for model in arguments.models
            for variant in arguments.variants
        ]
        for number, done in enumerate(as_completed(waiting), 1):
            rows += done.result()
            trace, variant, _ = cell_of(rows[-1])
            spent_s = time.monotonic() - began_s
            print(f"{number}/{len(waiting)} cells, {spent_s:.0f} s: {trace}, {variant}", flush=True)
    order = list(MODELS), list(VARIANTS)
    rows.sort(key=lambda row: (order[1].index(row["tiers"]), order[0].index(row["trace"])))
    summaries = [summary_of(rows, variant) for variant in arguments.variants]
    claims = checked([row for row in rows if row["tiers"] == COMPUTE_BOUND])
    write(arguments.output, {"variants": summaries, "claims": claims, "rows": rows})
    print(f"\n{report(rows, summaries)}\n\n{claims_table(claims)}\n\nwrote {arguments.output}")
    failed = any(row["policy"] == OURS and row["step_seconds"] is None for row in rows)
    sys.exit(1 if failed or better_than_ours(rows) else 0)


if __name__ == "__main__":
    main()
