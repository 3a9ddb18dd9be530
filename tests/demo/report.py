# SPDX-License-Identifier: Apache-2.0
"""The demo's report: JSON for programs, Markdown for people."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.demo.rules import PAGE_BYTES, Report, Verdict, best_fixed_share, run_of

NOTES = (
    "Fast share: touched pages x stretches of a step that the fast node served, by the kernel "
    "module's fault handler; a page counts once in a stretch however often it is touched, "
    "and bytes are not weighed.",
    "Plugin: the same share among accesses to tensor memory that miss a modelled cache of 1 MiB a "
    "CPU, counted by a QEMU plugin over one step; it sees the whole machine, and `machine` is the "
    "share of everything it saw, the kernel's copying and the module's arming included.",
    "Step times are the emulator's: it serves both nodes at one speed, so they tell what managing "
    "costs, not what fast memory gains.",
    "The balloon keeps the budget and the reserve, and no more, for the sum of node 0's free "
    "memory above its high watermarks and anonymous memory, while page cache and the like come and "
    "go.",
    "Kernel tiering continues from first-touch's placement in the same process; it is metered "
    "with its migration frozen, since armed pages would blind it.",
)


def assemble(
    runs: list[dict[str, Any]], counts: dict[str, dict[str, Any]], done: dict[str, Any], **more: Any
) -> Report:
    """The report of finished runs.

    counts: by policy, the plugin's figures. done: the guest's last event.
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
    """A share for people."""
    return "-" if share is None else f"{100 * share:.1f} %"


def table(report: Report) -> str:
    """The runs as a Markdown table."""
    rows = [
        "| policy | fast share | plugin: tensors | plugin: machine | moved a step | "
        "most on node 0 | step, emulated |",
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


def markdown(report: Report, verdicts: list[Verdict]) -> str:
    """The whole report for people."""
    bound = report["bound_fast_share"]
    best = "not computed, for the goal was met" if bound is None else percent(bound)
    parts = [
        "# sentineld's demo",
        f"Peak of live tensors {report['peak_bytes'] / 2**20:.1f} MiB, fast budget "
        f"{report['budget_bytes'] / 2**20:.1f} MiB (20 %), reserve beside it "
        f"{report['reserve_bytes'] / 2**20:.1f} MiB; machine: {report['machine']}. "
        f"Best fixed placement {percent(report['best_fixed_share'])}; best share of any plan at "
        f"this machine's migration rate: {best}.",
        table(report),
        "![tier residency over a step, and fast shares](report.png)",
        "\n".join(
            f"- {'holds' if verdict.holds else '**FAILS**'}: {verdict.rule} ({verdict.seen})"
            for verdict in verdicts
        ),
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
