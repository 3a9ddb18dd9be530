# SPDX-License-Identifier: Apache-2.0
"""The demo's report: JSON for programs, Markdown for people."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.demo.rules import (
    PAGE_BYTES,
    POLICIES,
    Report,
    Verdict,
    best_fixed_share,
    run_of,
    runs_of,
    step_seconds,
)

NOTES = (
    "Runs: the policies run one after the other, with the same number of warm-up steps under the "
    "policy and of timed steps. sentineld's warm-up begins again when its plan is corrected, and "
    "that of kernel tiering goes on until it moves few pages; both last at most 60 steps. No other "
    "training runs while steps are timed or metered. Those with limited fast memory have the "
    "same budget. The runs of kernel tiering are shown as a range.",
    "Fast share: the share of touches of tensor pages in a step that the fast node served, "
    "recorded by the kernel module's fault handler. A page counts at most once per stretch, "
    "no matter how often and in how many places it is touched. Timed steps are not metered.",
    "A balloon occupies memory of node 0, so that the node's free memory (above the high "
    "watermarks) and the other processes' anonymous memory on the node add up to the budget plus "
    "the reserve. The balloon adapts as the page cache grows and shrinks.",
    "Kernel tiering starts from first-touch's placement. Its migration is on while steps are timed "
    "and off while a step is metered, because NUMA balancing cannot sample armed pages.",
)
MODELLED_NOTES = (
    "Step time: the median of a run's timed steps, and their range. The times are those of a "
    "modelled clock (docs/explanation/demo-clock.md): one instruction per cycle at 3 GHz, and the "
    "bandwidths of DRAM and a CXL expander for cache misses. The wall time in the emulator says "
    "nothing about placement and is not shown.",
    "Plugin: the QEMU plugin that keeps the clock counts accesses that miss a simulated cache of "
    "1 MiB per CPU, over the timed steps. The column `tensors` is the fast share of the misses in "
    "tensor memory, `machine` that of all misses of the machine, page copies by the kernel "
    "included.",
)
REAL_NOTES = (
    "Step time: the median of a run's timed steps, and their range, by this machine's clock.",
)


def assemble(
    runs: list[dict[str, Any]], done: dict[str, Any], *, modelled: bool, **more: Any
) -> Report:
    """The report of finished runs.

    runs: the guest's "run" events, each with the plugin's figures or None as "plugin".
    done: the guest's "done" event.
    modelled: whether the step times are those of the modelled clock (see prices.py).
    more: further fields of the report.
    """
    for run in runs:
        run["plugin_fast_share"] = run["plugin"]["tensor_fast_share"] if run["plugin"] else None
    report: Report = {**done, **more, "modelled": modelled, "runs": runs}
    all_fast, sentineld = run_of(report, "all-fast"), run_of(report, "sentineld")
    touches = all_fast["metered_steps"][0]["page_touches"] if all_fast else [0]
    budget_pages = report["budget_bytes"] // PAGE_BYTES
    report["best_fixed_share"] = best_fixed_share(touches, budget_pages)
    report["touched_bytes"] = sum(touches[1:]) * PAGE_BYTES
    bound = sentineld["plan"].get("bound") if sentineld else None
    report["bound_fast_share"] = bound["fast_share"] if bound else None
    report["notes"] = [*NOTES, *(MODELLED_NOTES if modelled else REAL_NOTES)]
    return report


def summary(run: Report) -> str:
    """A run as one line of progress."""
    share = percent(run["fast_share"])
    return f"{run['policy']}: {step_seconds(run):.3f} s, {share} served by fast memory"


def percent(share: float | None) -> str:
    """A share as a percentage; None gives "-"."""
    return "-" if share is None else f"{100 * share:.1f} %"


def seconds(value: float) -> str:
    """A time in seconds."""
    return f"{value:.3f} s"


def span(values: list[float | None], form: Callable[[float], str]) -> str:
    """The smallest and the largest value, or one value if both have the same text."""
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    least, most = form(min(known)), form(max(known))
    return least if least == most else f"{least} to {most}"


def table(report: Report) -> str:
    """The policies as a Markdown table."""
    rows = [
        "| policy | runs | step time: median | step time: range | fast share | plugin: tensors "
        "| plugin: machine | moved per step | peak on node 0 |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for policy in POLICIES:
        runs = runs_of(report, policy)
        machine = [(run["plugin"] or {}).get("machine_fast_share") for run in runs]
        cells = (
            policy,
            str(len(runs)),
            span([step_seconds(run) for run in runs], seconds),
            span([step for run in runs for step in run["step_seconds"]], seconds),
            span([run["fast_share"] for run in runs], percent),
            span([run["plugin_fast_share"] for run in runs], percent),
            span(machine, percent),
            span([run["moved_bytes"] for run in runs], lambda value: f"{value / 2**20:.0f} MiB"),
            span(
                [run["peak_fast_bytes"] for run in runs], lambda value: f"{value / 2**20:.1f} MiB"
            ),
        )
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def verdict_lines(verdicts: list[Verdict]) -> str:
    """A Markdown list of the rules."""
    return "\n".join(
        f"- {'holds' if verdict.holds else '**FAILS**'}: {verdict.rule} ({verdict.seen})"
        for verdict in verdicts
    )


def markdown(report: Report, verdicts: list[Verdict]) -> str:
    """The report as Markdown."""
    bound = report["bound_fast_share"]
    best = "not computed, as the goal is met" if bound is None else percent(bound)
    clocked = report["clocked"]
    bandwidth = "this machine's migration bandwidth"
    if clocked:
        bandwidth = (
            f"the assumed migration bandwidth of {clocked['assumed_bytes_per_s'] / 1e6:.0f} MB/s "
            f"(measured with idle pages: {clocked['measured_bytes_per_s'] / 1e6:.0f} MB/s; the "
            f"guest's time is {clocked['dilation']:.1f} times the modelled time)"
        )
    parts = [
        "# sentineld demo",
        f"Machine: {report['machine']}. Peak of live tensors: "
        f"{report['peak_bytes'] / 2**20:.1f} MiB; fast-memory budget: "
        f"{report['budget_bytes'] / 2**20:.1f} MiB (20 %); reserve for other memory: "
        f"{report['reserve_bytes'] / 2**20:.1f} MiB. Each run: {report['warm_up_steps']} warm-up "
        f"steps, {report['timed_steps']} timed steps. Fast share of the best fixed placement: "
        f"{percent(report['best_fixed_share'])}; fast-share bound of all plans at {bandwidth}: "
        f"{best}.",
        table(report),
        "![resident tensor pages by node over a step, step times and fast shares](report.png)",
        verdict_lines(verdicts),
        "\n".join(f"- {note}" for note in report["notes"]),
    ]
    return "\n\n".join(parts) + "\n"


def save(report: Report, verdicts: list[Verdict], folder: Path) -> None:
    """Write report.json and report.md."""
    folder.mkdir(parents=True, exist_ok=True)
    rules = [vars(verdict) for verdict in verdicts]
    text = json.dumps({**report, "rules": rules}, indent=1)
    (folder / "report.json").write_text(text + "\n")
    (folder / "report.md").write_text(markdown(report, verdicts))
