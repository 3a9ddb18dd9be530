# SPDX-License-Identifier: Apache-2.0
"""The rules that the demo's report must satisfy."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

Report = dict[str, Any]

RIVALS = ("first-touch", "kernel tiering")
LIMITED = (*RIVALS, "sentineld")
POLICIES = ("all-fast", "all-slow", *LIMITED)

PEAK_BYTES_MIN = 200 << 20
TOUCHED_MIN = 0.8
FIRST_TOUCH_MAX = 0.60
FIXED_MAX = 0.75
SENTINELD_MIN = 0.90
SHARE_OF_BOUND_MIN = 0.95
OVER_BUDGET_MAX = 1.05
STEADY_STEPS_MIN = 4
TIMED_STEPS_MIN = 5
KERNEL_RUNS_MIN = 3
PAGE_BYTES = 4096


@dataclass(frozen=True)
class Verdict:
    """The result of one rule."""

    rule: str
    holds: bool
    seen: str  # the measured value


def runs_of(report: Report, policy: str) -> list[Report]:
    """The runs of a policy, in their order."""
    return [run for run in report["runs"] if run["policy"] == policy]


def run_of(report: Report, policy: str) -> Report | None:
    """The first run of a policy, or None if the report has no such run."""
    return next(iter(runs_of(report, policy)), None)


def step_seconds(run: Report) -> float:
    """The median of a run's timed steps."""
    return float(statistics.median(run["step_seconds"]))


def best_fixed_share(page_touches: list[int], pages: int) -> float:
    """Share of touches that fast memory serves if it always holds the pages with the most touches.

    page_touches: element k is the number of pages touched in exactly k stretches; such a page has k
        touches.
    pages: the number of pages that fit in fast memory.
    """
    total = sum(count * pages_ for count, pages_ in enumerate(page_touches))
    served, left = 0, pages
    for count in range(len(page_touches) - 1, 0, -1):
        taken = min(left, page_touches[count])
        served += count * taken
        left -= taken
    return served / total if total else 0.0


def check(report: Report) -> list[Verdict]:
    """Check all rules in order. If a run is missing, check only the first rule, which is that every
    policy ran."""
    missing = [policy for policy in POLICIES if run_of(report, policy) is None]
    verdicts = [Verdict("every policy ran", not missing, f"missing: {missing or 'none'}")]
    if missing:
        return verdicts
    checks = (_runs, _workload, _budget, _sentineld, _times, _losses)
    return [*verdicts, *(verdict for check_ in checks for verdict in check_(report))]


def _runs(report: Report) -> list[Verdict]:
    """Check that there are enough runs and timed steps."""
    kernel_runs = len(runs_of(report, "kernel tiering"))
    timed = min(len(run["step_seconds"]) for run in report["runs"])
    unsettled = [run["policy"] for run in report["runs"] if not run.get("settled", True)]
    return [
        Verdict(
            f"kernel tiering ran at least {KERNEL_RUNS_MIN} times",
            kernel_runs >= KERNEL_RUNS_MIN,
            str(kernel_runs),
        ),
        Verdict(
            f"at least {TIMED_STEPS_MIN} steps of each run were timed",
            timed >= TIMED_STEPS_MIN,
            f"lowest: {timed}",
        ),
        Verdict(
            "sentineld and kernel tiering had settled before their steps were timed",
            not unsettled,
            f"had not: {', '.join(unsettled) or 'none'}",
        ),
    ]


def _workload(report: Report) -> list[Verdict]:
    """Check the workload: its size, and that fixed placements reach only low fast shares."""
    peak, touched = report["peak_bytes"], report["touched_bytes"]
    first_touch = run_of(report, "first-touch")
    assert first_touch is not None
    share, fixed = first_touch["fast_share"], report["best_fixed_share"]
    return [
        Verdict("peak >= 200 MiB", peak >= PEAK_BYTES_MIN, f"{peak / 2**20:.1f} MiB"),
        Verdict(
            "a step touches >= 80 % of the peak",
            touched >= TOUCHED_MIN * peak,
            f"{touched / peak:.1%}",
        ),
        Verdict("first-touch <= 60 %", share <= FIRST_TOUCH_MAX, f"{share:.1%}"),
        Verdict("best fixed placement <= 75 %", fixed <= FIXED_MAX, f"{fixed:.1%}"),
    ]


def _budget(report: Report) -> list[Verdict]:
    """Check that runs with limited fast memory use at most OVER_BUDGET_MAX times the budget."""
    verdicts = []
    for policy in LIMITED:
        peak_bytes = max(run["peak_fast_bytes"] for run in runs_of(report, policy))
        part = peak_bytes / report["budget_bytes"]
        verdicts.append(
            Verdict(
                f"{policy}: tensors on node 0 <= 1.05 x budget",
                part <= OVER_BUDGET_MAX,
                f"{part:.3f} x",
            )
        )
    return verdicts


def _sentineld(report: Report) -> list[Verdict]:
    run = run_of(report, "sentineld")
    assert run is not None
    steps, budget = run["metered_steps"], report["budget_bytes"]
    charged = max(step["charged_bytes_max"] for step in steps)
    share = min(step["fast_share"] for step in steps)
    moved = min(step["moved_bytes"] for step in steps)
    bound, fixed = report["bound_fast_share"], report["best_fixed_share"]
    if bound is not None and SHARE_OF_BOUND_MIN * bound < SENTINELD_MIN:
        rule = f"sentineld serves >= 0.95 of the fast-share bound of {bound:.1%}"
        enough = share >= SHARE_OF_BOUND_MIN * bound
    else:
        rule = "sentineld serves >= 90 % from fast memory in every steady step"
        enough = share >= SENTINELD_MIN
    return [
        Verdict(
            f"at least {STEADY_STEPS_MIN} steady steps were metered",
            len(steps) >= STEADY_STEPS_MIN,
            str(len(steps)),
        ),
        Verdict(
            "sentineld's charge is within the budget at every boundary",
            charged <= budget,
            f"{charged / 2**20:.2f} of {budget / 2**20:.2f} MiB",
        ),
        Verdict(rule, enough, f"lowest: {share:.1%}"),
        Verdict(
            "sentineld serves more from fast memory than the best fixed placement",
            share > fixed,
            f"lowest: {share:.1%}, best fixed placement: {fixed:.1%}",
        ),
        Verdict(
            "sentineld moves pages in every steady step",
            moved > 0,
            f"lowest: {moved / 2**20:.0f} MiB",
        ),
    ]


def _times(report: Report) -> list[Verdict]:
    """Check that sentineld's median step is faster than that of each run of its rivals."""
    run = run_of(report, "sentineld")
    assert run is not None
    own = step_seconds(run)
    verdicts = []
    for policy in RIVALS:
        fastest = min(step_seconds(rival) for rival in runs_of(report, policy))
        verdicts.append(
            Verdict(
                f"sentineld's median step is faster than that of each run of {policy}",
                own < fastest,
                f"{own:.3f} s, {policy} at best {fastest:.3f} s",
            )
        )
    return verdicts


def _losses(report: Report) -> list[Verdict]:
    """Check that the losses, as hexadecimal floats, equal the unmanaged run's, bit for bit."""
    expected = report["unmanaged_losses"]
    verdicts = []
    for run in report["runs"]:
        common = min(len(expected), len(run["losses"]))
        same = common > 0 and run["losses"][:common] == expected[:common]
        verdicts.append(
            Verdict(
                f"{run['policy']}: same losses as the unmanaged run, bit for bit",
                same,
                f"{common} of {len(run['losses'])} steps compared",
            )
        )
    return verdicts
