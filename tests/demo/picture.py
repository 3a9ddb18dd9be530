# SPDX-License-Identifier: Apache-2.0
"""The demo's picture: resident tensor bytes by node over a step, and the fast shares."""

from __future__ import annotations

from pathlib import Path

import matplotlib

from tests.demo.rules import POLICIES, Report, run_of

matplotlib.use("Agg")
from matplotlib import pyplot

FAST, SLOW, SECOND = "#1f77b4", "#c9c9c9", "#7fb3d8"
MIB = 1 << 20


def draw(report: Report, path: Path) -> None:
    """Write the picture as PNG."""
    figure, (left, right) = pyplot.subplots(
        1, 2, figsize=(12, 4.6), width_ratios=(3, 2), layout="constrained"
    )
    _residency(left, report)
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


def _shares(axes: pyplot.Axes, report: Report) -> None:
    width = 0.38
    for place, policy in enumerate(POLICIES):
        run = run_of(report, policy)
        assert run is not None
        for offset, share, colour, meter in (
            (width / 2, run["fast_share"], FAST, "kernel module: page touches"),
            (-width / 2, run["plugin_fast_share"], SECOND, "QEMU plugin: cache misses"),
        ):
            if share is not None:
                label = meter if policy == POLICIES[0] else "_nolegend_"
                axes.barh(-place + offset, 100 * share, width, color=colour, label=label)
                axes.text(100 * share + 1, -place + offset, f"{100 * share:.1f}", va="center")
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
