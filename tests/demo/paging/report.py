# SPDX-License-Identifier: Apache-2.0
"""The report of the demo's first part: JSON for programs, Markdown for people."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from statistics import median
from typing import Any

from tests.bench import results
from tests.bench.figures import table
from tests.bench.paging.figures import OURS, RAM
from tests.demo.paging.possible import LeftOut
from tests.demo.paging.rules import Report, ran
from tests.demo.report import verdict_lines
from tests.demo.rules import Verdict

SWAP = "swap"
TITLES = {RAM: "all in RAM", SWAP: "Linux swap", OURS: "sentineld"}
"""The contestants' names in the report."""

TITLE = "# sentineld demo, part 1: less memory than the model needs"
FILES = ("paging.md", "paging.json", "paging.png")
QUIET_SHARE = 0.8
"""The machine counts as busy if the CPU time of a step of the training in RAM is less than this
share of the step's time."""
MIB = 1 << 20
NOTES = (
    "All figures are measured on this machine; nothing is emulated. The trainings run in turns, "
    "one unmeasured step and then the measured ones, while the others pause. Figures are medians "
    "over the turns, per step.",
    "The memory limit is that of a memory cgroup. It leaves room for the share of the tensors and "
    "for everything else that the process needs. `used` is the cgroup's largest usage in a turn.",
    "Linux swap: a swap file with the kernel's default settings, which is enabled only in this "
    "training's turns. sentineld: paged tiers, without swap.",
    "Read and written are counts of the disk, so they include other programs' traffic.",
    "Waits: accesses to pages that were not in memory (swap: major faults).",
)


def assemble(
    done: dict[str, Any], left_out: tuple[LeftOut, ...], folder: Path, wall_seconds: float
) -> Report:
    """The report of finished trainings. done: the event "done" of tests/demo/paging/run.py."""
    report: Report = {
        **done,
        "titles": TITLES,
        "left_out": [vars(one) for one in left_out],
        "folder": str(folder),
        "machine": {"cpus": os.cpu_count(), "kernel": platform.release()},
        "wall_seconds": round(wall_seconds, 1),
        "notes": list(NOTES),
    }
    plain_s = None
    for one in ran(report).values():
        steps_s = [turn["step_s"] for turn in one["turns"]]
        plain_s = median(steps_s) if plain_s is None else plain_s
        one["step_seconds"] = median(steps_s)
        one["over_ram"] = one["step_seconds"] / plain_s
    return report


def rows(report: Report) -> str:
    """The trainings as a Markdown table."""
    head = (
        "training", "memory limit", "used", "step time", "/ all in RAM", "read per step",
        "written per step", "waits per step", "losses",
    )  # fmt: skip
    return table(head, (_cells(report["titles"][name], one) for name, one in ran(report).items()))


def _cells(title: str, one: Report) -> list[str]:
    columns = {key: [turn[key] for turn in one["turns"]] for key in one["turns"][0]}
    return [
        title,
        _mib(one["limit_bytes"], "none"),
        _mib(max(columns["peak_bytes"])),
        f"{one['step_seconds']:.2f} s",
        f"{one['over_ram']:.2f} x",
        _mib(_median(columns["disk_bytes_read"])),
        _mib(_median(columns["disk_bytes_written"])),
        f"{median(columns['late_faults']):.0f}",
        "equal" if one["losses_equal"] else "DIFFER",
    ]


def _median(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _mib(size_bytes: float | None, absent: str = "-") -> str:
    return absent if size_bytes is None else f"{size_bytes / MIB:.0f} MiB"


def summary(report: Report) -> str:
    """One sentence with the result."""
    found = ran(report)
    text = (
        f"With {report['fraction']:.0%} of its tensors' memory, a step of {report['model']} takes "
    )
    parts = [
        f"{found[name]['over_ram']:.2f} times as long under {report['titles'][name]}"
        for name in (OURS, SWAP)
        if name in found
    ]
    return f"{text}{' and '.join(parts)} as with all in RAM." if parts else ""


def busy(report: Report) -> str:
    """A warning if the training in RAM waited for its CPU, else ""."""
    turns = report["contestants"][RAM]["turns"]
    share = median(turn["cpu_s"] / turn["step_s"] for turn in turns)
    if share >= QUIET_SHARE:
        return ""
    return (
        f"**The machine was busy.** The training in RAM had a CPU for only {share:.0%} of its "
        "time, so the step times and their ratios are not reliable. Run the demo again when "
        "nothing else runs."
    )


def markdown(report: Report, verdicts: list[Verdict]) -> str:
    """The report as Markdown."""
    machine = report["machine"]
    without = [str(LeftOut(**one)) for one in report["left_out"]]
    parts = [
        TITLE,
        f"{report['model']} on this machine ({machine['cpus']} CPUs, Linux {machine['kernel']}; "
        f"one torch thread; files in {report['folder']}). Peak of live tensors: "
        f"{report['tensor_peak_bytes'] / MIB:.0f} MiB; room for tensors: "
        f"{report['fast_bytes'] / MIB:.0f} MiB ({report['fraction']:.0%}).",
        rows(report),
        summary(report),
        busy(report),
        "\n".join(f"- {text}" for text in without),
        "![step times and memory](paging.png)",
        verdict_lines(verdicts),
        "\n".join(f"- {note}" for note in report["notes"]),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def save(report: Report, verdicts: list[Verdict], folder: Path) -> None:
    """Write paging.json and paging.md."""
    results.write(
        folder / "paging.json", {**report, "rules": [vars(verdict) for verdict in verdicts]}
    )
    (folder / "paging.md").write_text(markdown(report, verdicts))


def save_reason(reason: str, folder: Path) -> None:
    """Write paging.json and paging.md on a machine that cannot run this part."""
    results.write(folder / "paging.json", {"cannot_run": reason})
    (folder / "paging.md").write_text(f"{TITLE}\n\nThis part cannot run here: {reason}.\n")


def remove(folder: Path) -> None:
    """Remove the files of an earlier run, which could be mistaken for this run's."""
    for name in FILES:
        (folder / name).unlink(missing_ok=True)
