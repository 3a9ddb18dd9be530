# SPDX-License-Identifier: Apache-2.0
"""The demo's picture: resident tensor bytes by node over a step, step times, and fast shares."""

from __future__ import annotations

import statistics
from pathlib import Path

import matplotlib

from tests.demo.rules import POLICIES, Report, run_of, runs_of, step_seconds

matplotlib.use("Agg")
from matplotlib import pyplot

FAST, SLOW, SECOND = "#1f77b4", "#c9c9c9", "#7fb3d8"
MIB = 1 << 20


def draw(report: Report, path: Path) -> None:
    """Write the picture as PNG."""
    figure, (left, middle, right) = pyplot.subplots(
        1, 3, figsize=(16, 4.6), width_ratios=(3, 2, 2), layout="constrained"
    )
    _residency(left, report)
    _times(middle, report)
    _shares(right, report)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _residency(axes: pyplot.Axes, report: Report) -> None:
    run = run_of(report, "sentineld")
    assert run is not None
    stretches = run["metered_steps"][-1]["stretches"]
    fast = [stretch["resident_bytes"][0] / MIB for stretch in stretches]
    slow = [sum(stretch["resident_bytes"][1:]) / MIB for stretch in stretches]
    axes.stackplot(
        range(len(stretches)), fast, slow, labels=("fast node", "slow node"), colors=(FAST, SLOW)
    )
    axes.axhline(
        report["budget_bytes"] / MIB, color="black", linewidth=1, linestyle="--", label="budget"
    )
    axes.set(
        title="sentineld: tensor pages by node over one step",
        xlabel="stretch of the step (forward, backward, optimizer)",
        ylabel="resident (MiB)",
        xlim=(0, len(stretches) - 1),
    )
    axes.legend(loc="upper left")


def _times(axes: pyplot.Axes, report: Report) -> None:
    """Draw each policy's step time (the median of its runs' medians) as a bar, and each timed step
    as a short line."""
    for place, policy in enumerate(POLICIES):
        runs = runs_of(report, policy)
        median = statistics.median(step_seconds(run) for run in runs)
        steps = [seconds for run in runs for seconds in run["step_seconds"]]
        axes.barh(-place, median, 0.6, color=FAST if policy == "sentineld" else SECOND)
        axes.plot(steps, [-place] * len(steps), "k|")
        axes.text(max(steps), -place, f"  {median:.2f}", va="center")
    clock = "modelled clock" if report["modelled"] else "this machine's clock"
    axes.set_yticks([-place for place in range(len(POLICIES))], POLICIES)
    axes.set(title="step time", xlabel=f"seconds, {clock}")
    axes.margins(x=0.2)
    axes.set_xlim(left=0)


def _shares(axes: pyplot.Axes, report: Report) -> None:
    width = 0.38
    for place, policy in enumerate(POLICIES):
        runs = runs_of(report, policy)
        for offset, key, colour, meter in (
            (width / 2, "fast_share", FAST, "kernel module: page touches"),
            (-width / 2, "plugin_fast_share", SECOND, "QEMU plugin: cache misses"),
        ):
            shares = [100 * run[key] for run in runs if run[key] is not None]
            if shares:
                share, height = statistics.median(shares), -place + offset
                label = meter if policy == POLICIES[0] else "_nolegend_"
                axes.barh(height, share, width, color=colour, label=label)
                if len(shares) > 1:
                    axes.plot(shares, [height] * len(shares), "k|")
                axes.text(max(shares) + 2, height, f"{share:.1f}", va="center")
    axes.axvline(
        100 * report["best_fixed_share"],
        color="black",
        linewidth=1,
        linestyle=":",
        label="best fixed placement",
    )
    axes.set_yticks([-place for place in range(len(POLICIES))], POLICIES)
    axes.set(title="fast share", xlabel="% of tensor accesses served by fast memory", xlim=(0, 118))
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=1, frameon=False)
