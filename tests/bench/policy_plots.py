# SPDX-License-Identifier: Apache-2.0
"""Plots of bench-policies: slowdown by policy and by fast fraction, and fast memory in a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib import pyplot
from matplotlib.figure import Figure

from sentineld.base.errors import SentinelError
from sentineld.host.presets import preset_tiers
from sentineld.model.plan import Plan
from sentineld.model.profile import Profile
from sentineld.plan.residency import peak_fast_pages, residency
from sentineld.policies.registry import manages, policy
from tests.bench.policy_figures import OURS, UNLIMITED, Row, by_policy, geometric_mean, slowdown

StepOf = Callable[[str], tuple[Profile, int]]

TIMELINE_POLICIES = (OURS, "autotm", "sentinel", "static")
TIMELINE_FRACTION = 0.2
MIB = 1 << 20


def draw(rows: Sequence[Row], step_of: StepOf, folder: Path) -> list[Path]:
    """Draw all plots as svg and png; return the files.

    step_of: returns (profile, number of threads) for a trace's name.
    """
    mpl.use("Agg")
    pictures = {
        "policies-slowdown": by_policy_picture(rows),
        "policies-fraction": over_fraction_picture(rows),
        "policies-timeline": timeline_picture(rows, step_of),
    }
    files = []
    for name, figure in pictures.items():
        if figure is None:
            continue
        for kind in ("svg", "png"):
            files.append(folder / f"{name}.{kind}")
            figure.savefig(files[-1], dpi=120, bbox_inches="tight")
        pyplot.close(figure)
    return files


def by_policy_picture(rows: Sequence[Row]) -> Figure:
    """Draw for each policy a dot for its slowdown in each cell (a trace, a preset and a fast
    fraction), and a bar for the geometric mean of these slowdowns."""
    shown = {name: mine for name, mine in by_policy(rows).items() if name != UNLIMITED}
    figure, axes = pyplot.subplots(figsize=(9, 0.4 * len(shown) + 1.5))
    for at, (name, mine) in enumerate(shown.items()):
        values = [value for row in mine if (value := slowdown(row)) is not None]
        mean = geometric_mean(values)
        if mean is None:
            axes.text(1.0, at, " infeasible as published", va="center", fontsize=8)
            continue
        axes.barh(at, mean - 1, left=1.0, color="C1" if name == OURS else "C0", alpha=0.6)
        axes.plot(values, np.full(len(values), at), "k.", markersize=3)
        axes.text(mean, at + 0.35, f"{mean:.2f} ({len(values)})", fontsize=7, va="center")
    axes.set_yticks(range(len(shown)), list(shown))
    axes.invert_yaxis()
    axes.set_xlabel("simulated step / all-fast step: geometric mean (cells), each cell a dot")
    axes.grid(axis="x", alpha=0.3)
    return figure


def over_fraction_picture(rows: Sequence[Row]) -> Figure:
    """Draw the mean slowdown over the fast fraction: a panel per preset, a line per policy."""
    presets = sorted({row["tiers"] for row in rows})
    fractions = sorted({row["fast_fraction"] for row in rows})
    shown = {name: mine for name, mine in by_policy(rows).items() if name != UNLIMITED}
    figure, panels = pyplot.subplots(
        1, len(presets), figsize=(6 * len(presets), 5), sharey=True, squeeze=False
    )
    for axes, preset in zip(panels[0], presets, strict=True):
        for number, (name, mine) in enumerate(shown.items()):
            means = [
                geometric_mean(
                    slowdown(row)
                    for row in mine
                    if (row["tiers"], row["fast_fraction"]) == (preset, fraction)
                )
                for fraction in fractions
            ]
            axes.plot(
                fractions,
                [np.nan if mean is None else mean for mean in means],
                ("o-", "s--", "^:")[number // 10 % 3],
                color=f"C{number % 10}",
                label=name,
            )
        axes.set_title(preset)
        axes.set_xlabel("fast memory / peak")
        axes.grid(alpha=0.3)
    panels[0][0].set_ylabel("simulated step / all-fast step, geometric mean of feasible cells")
    panels[0][-1].legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def timeline_picture(rows: Sequence[Row], step_of: StepOf) -> Figure | None:
    """Draw the charged fast memory and the moves over a step of the first trace, for the plan of
    each policy in TIMELINE_POLICIES."""
    chosen = [row for row in rows if row["fast_fraction"] == TIMELINE_FRACTION]
    if not chosen:
        return None
    trace, preset = chosen[0]["trace"], chosen[0]["tiers"]
    profile, threads = step_of(trace)
    budget_bytes = int(profile.peak_bytes * TIMELINE_FRACTION)
    tiers = preset_tiers(preset, threads)
    plans: list[Plan] = []
    for name in sorted({row["policy"] for row in chosen} & set(TIMELINE_POLICIES)):
        found = policy(name)
        if not manages(found):
            continue
        try:
            plans.append(found.plan(profile, tiers, budget_bytes))
        except SentinelError as error:
            print(f"timeline without {name}: {error.message}", flush=True)
    if not plans:
        return None
    figure, panels = pyplot.subplots(
        len(plans), 1, figsize=(10, 2.4 * len(plans)), sharex=True, squeeze=False
    )
    for axes, plan in zip(panels[:, 0], plans, strict=True):
        _timeline(axes, plan, profile)
    panels[-1][0].set_xlabel("all-fast time in the step, s")
    panels[0][0].set_title(f"{trace}, {preset}, {TIMELINE_FRACTION:.0%} of the peak fast")
    return figure


def _timeline(axes: pyplot.Axes, plan: Plan, profile: Profile) -> None:
    times_s = profile.stretches["time_ns"].astype(np.float64) / 1e9
    ends_s = np.concatenate([[0.0], np.cumsum(times_s)])
    fast = peak_fast_pages(plan, profile, residency(plan, profile)) * profile.page_bytes
    axes.stairs(fast / MIB, ends_s, fill=True, alpha=0.4, label="resident")
    axes.axhline(plan.budget_bytes / MIB, color="k", linewidth=0.8, linestyle="--", label="budget")
    for tier, sign, color in ((0, 1.0, "C2"), (1, -1.0, "C3")):
        rows = plan.moves[plan.moves["tier"] == tier]
        moved = np.bincount(
            rows["boundary"], rows["bytes"].astype(np.float64), minlength=len(times_s)
        )
        axes.stairs(
            sign * moved / MIB, ends_s, color=color, label="promoted" if tier == 0 else "demoted"
        )
    axes.set_ylabel(f"{plan.policy}\nMiB")
    axes.legend(fontsize=6, loc="upper right")
