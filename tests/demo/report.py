# SPDX-License-Identifier: Apache-2.0
"""The demo's report: JSON for programs, Markdown for people."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.demo.rules import PAGE_BYTES, Report, Verdict, best_fixed_share, run_of

NOTES = (
    "Fast share: the share of touches of tensor pages in a step that the fast node served, "
    "recorded by the kernel module's fault handler. A page counts at most once per stretch, "
    "no matter how often and in how many places it is touched.",
    "Plugin: a QEMU plugin counts accesses that miss a simulated cache of 1 MiB per CPU, over one "
    "step. The column `tensors` is the fast share of the misses in tensor memory, `machine` that "
    "of all misses of the machine, including page copies by the kernel and arming by the module.",
    "Step times are measured in the emulator, which serves both nodes at the same speed: they show "
    "the overhead of management, not the gain from fast memory.",
    "A balloon occupies memory of node 0, so that the node's free memory (above the high "
    "watermarks) and the other processes' anonymous memory on the node add up to the budget plus "
    "the reserve. The balloon adapts as the page cache grows and shrinks.",
    "Kernel tiering continues from first-touch's placement in the same process. Its migration is "
    "off while it is metered, because NUMA balancing cannot sample armed pages.",
)


def assemble(
    runs: list[dict[str, Any]], counts: dict[str, dict[str, Any]], done: dict[str, Any], **more: Any
) -> Report:
    """The report of finished runs.

    runs: the guest's "run" events.
    counts: policy -> the plugin's figures.
    done: the guest's "done" event.
    more: further fields of the report.
    """
    for run in runs:
        count = counts.get(run["policy"])
        run["plugin_fast_share"] = count["tensor_fast_share"] if count else None
        run["plugin"] = count
    report: Report = {**done, **more, "runs": runs}
    report.pop("event", None)
    all_fast, sentineld = run_of(report, "all-fast"), run_of(report, "sentineld")
    touches = all_fast["metered_steps"][0]["page_touches"] if all_fast else [0]
    budget_pages = report["budget_bytes"] // PAGE_BYTES
    report["best_fixed_share"] = best_fixed_share(touches, budget_pages)
    report["touched_bytes"] = sum(touches[1:]) * PAGE_BYTES
    bound = sentineld["plan"].get("bound") if sentineld else None
    report["bound_fast_share"] = bound["fast_share"] if bound else None
    report["notes"] = list(NOTES)
    return report


def percent(share: float | None) -> str:
    """A share as a percentage; None gives "-"."""
    return "-" if share is None else f"{100 * share:.1f} %"


def table(report: Report) -> str:
    """The runs as a Markdown table."""
    rows = [
        "| policy | fast share | plugin: tensors | plugin: machine | moved per step | "
        "peak on node 0 | step time, emulated |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for run in report["runs"]:
        plugin = run["plugin"] or {}
        rows.append(
            f"| {run['policy']} | {percent(run['fast_share'])} "
            f"| {percent(run['plugin_fast_share'])} | {percent(plugin.get('machine_fast_share'))} "
            f"| {run['moved_bytes'] / 2**20:.0f} MiB | {run['peak_fast_bytes'] / 2**20:.1f} MiB "
            f"| {run['step_seconds']:.1f} s |"
        )
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
    parts = [
        "# sentineld demo",
        f"Machine: {report['machine']}. Peak of live tensors: "
        f"{report['peak_bytes'] / 2**20:.1f} MiB; fast-memory budget: "
        f"{report['budget_bytes'] / 2**20:.1f} MiB (20 %); reserve for other memory: "
        f"{report['reserve_bytes'] / 2**20:.1f} MiB. Fast share of the best fixed placement: "
        f"{percent(report['best_fixed_share'])}; fast-share bound of all plans at this machine's "
        f"migration bandwidth: {best}.",
        table(report),
        "![resident tensor pages by node over a step, and fast shares](report.png)",
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
