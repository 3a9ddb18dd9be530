# SPDX-License-Identifier: Apache-2.0
"""Compares the results of bench-policies with figures that papers have published.

The published figures are from the papers' abstracts, from their artifacts or from third parties'
notes (docs/policies.md). A claim is checked for each preset. The simulated figures are those of the
traces for which all policies that the claim names have a plan. The classes below say how a trace
without a plan counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tests.bench.figures import table
from tests.bench.policy_figures import Row, geometric_mean, slowdown

FRACTION = 0.2
"""Claims are checked at this fast fraction. Sentinel's figures were published for the same
fraction. AutoTM's figures are for machines on which slow memory replaces 50 to 80 % of the DRAM.
The other papers used different ratios."""
CLOSE = 0.75
"""The lead of one policy over another (see Ahead) counts as reproduced if it is at least this share
of the published lead."""

Verdict = Literal["reproduced", "in part", "not reproduced", "no plan"]


@dataclass(frozen=True)
class Found:
    """The simulator's result for a claim under one preset."""

    figure: float | None  # geometric mean over `traces`; None: `traces` is empty
    traces: Mapping[str, float]
    """Slowdown (Within) or 1 + lead (Ahead) of each trace that is not in `without`."""
    without: tuple[str, ...]  # traces for which a policy has no plan
    verdict: Verdict


@dataclass(frozen=True)
class Within:
    """The claim that a policy's step takes at most `most` times as long as the all-fast step.

    The claim is reproduced if it holds for every trace, and reproduced in part if it holds for some
    traces. It does not hold for a trace without a plan. If the published figure is a geometric mean
    (`on_average`), the claim holds if the geometric mean over the traces that have a plan is at
    most `most`. A claim that holds in this sense is reproduced if every trace has a plan, and
    otherwise reproduced in part.
    """

    policy: str
    most: float
    published: str
    source: str
    on_average: bool = False

    @property
    def text(self) -> str:
        """The claim in words."""
        average = " on average" if self.on_average else ""
        return f"{self.policy} within {self.most - 1:.0%} of all-fast{average}"

    def check(self, cells: Mapping[str, Mapping[str, float]]) -> Found:
        """Check the claim. cells: slowdowns by trace and policy."""
        ours = {trace: one[self.policy] for trace, one in cells.items() if self.policy in one}
        if self.on_average:
            mean = geometric_mean(ours.values())
            held = len(ours) if mean is not None and mean <= self.most else 0
        else:
            held = sum(value <= self.most for value in ours.values())
        verdict: Verdict = "in part" if held else "not reproduced"
        return _found(ours, cells, "reproduced" if ours and held == len(cells) else verdict)


@dataclass(frozen=True)
class Ahead:
    """The claim that the steps of `other` take (1 + lead) times as long as those of `policy`.

    The claim is reproduced if the mean lead is positive and at least CLOSE times the published
    lead, and for most traces both policies have a plan. Otherwise, the claim is reproduced in part
    if the mean lead is positive.
    lead: None if no figure was published.
    """

    policy: str
    other: str
    lead: float | None
    published: str
    source: str

    @property
    def text(self) -> str:
        """The claim in words."""
        by = "" if self.lead is None else f" by {self.lead:.0%}"
        return f"{self.policy} ahead of {self.other}{by}"

    def check(self, cells: Mapping[str, Mapping[str, float]]) -> Found:
        """Check the claim. cells: slowdowns by trace and policy."""
        ours = {
            trace: one[self.other] / one[self.policy]
            for trace, one in cells.items()
            if self.policy in one and self.other in one
        }
        mean = geometric_mean(ours.values()) or 1.0
        most = 2 * len(ours) > len(cells)
        enough = most and mean > 1 and mean - 1 >= CLOSE * (self.lead or 0.0)
        verdict: Verdict = "in part" if mean > 1 else "not reproduced"
        return _found(ours, cells, "reproduced" if enough else verdict)


def _found(
    ours: Mapping[str, float], cells: Mapping[str, Mapping[str, float]], verdict: Verdict
) -> Found:
    without = tuple(trace for trace in cells if trace not in ours)
    return Found(geometric_mean(ours.values()), ours, without, verdict if ours else "no plan")


def _losing(share: float) -> float:
    """The step time, divided by the all-fast step time, at which this share of the performance
    (steps per second) is lost."""
    return 1 / (1 - share)


CLAIMS: tuple[Within | Ahead, ...] = (
    Within("sentinel", 1.08, "at most 8 % slower", "Sentinel, arXiv 1909.05182"),
    Ahead("sentinel", "ial", 0.37, "37 % faster on CPUs", "Sentinel, HPCA 2021"),
    Ahead("sentinel", "autotm", 0.17, "17 to 18 % faster", "Sentinel, HPCA 2021 (from memory)"),
    Within(
        "autotm",
        _losing(0.277),
        "50 to 80 % of DRAM replaced cost 27.7 % of the performance (geometric mean)",
        "AutoTM, ASPLOS 2020",
        on_average=True,
    ),
    Ahead("autotm", "memory-mode", 1.0, "about twice as fast for very large nets", "the same"),
    Ahead("memory-mode", "first-touch", None, "ahead of unmanaged placement", "the same"),
    Ahead("tpp", "first-touch", 0.18, "up to 18 % faster than Linux", "TPP, ASPLOS 2023"),
    Ahead("tpp", "numab", 0.05, "5 to 17 % faster than NUMA balancing", "the same"),
    Ahead("memtis", "tpp", None, "ahead of TPP and other kernels' tiering", "MEMTIS, SOSP 2023"),
    Ahead("tpp+colloid", "tpp", 0.2, "20 to 135 % faster", "Colloid, SOSP 2024"),
    Ahead("tiertrain", "tpp", 0.35, "35 to 84 % faster with little DRAM", "TierTrain, ISMM 2025"),
    Ahead("vtmm", "numab", 0.51, "51 % faster, four VMs", "HMM-V, arXiv 2209.13111"),
    Ahead("vtmm", "memory-mode", 0.31, "31 % faster, four VMs", "the same"),
    Within(
        "g10",
        1 / 0.903,
        "90.3 % of all-fast speed (geometric mean)",
        "G10, MICRO 2023, its artifact",
        on_average=True,
    ),
    Ahead("g10", "flashneuron", 0.55, "40 to 75 % faster on three models", "the same"),
    Ahead("capuchin+slow", "vdnn+slow", None, "up to 286 % faster", "Capuchin, ASPLOS 2020"),
    Within("swapadvisor", 1 / 0.53, "53 to 99 % of all-fast speed", "SwapAdvisor, ASPLOS 2020"),
)
"""The published claims about speed, as far as they can be expressed as ratios of step times. Claims
about the amount of memory that a policy saves are not among them. docs/policies.md discusses all
published claims."""


def checked(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Check all claims; return the results as JSON values for claims.json."""
    presets = sorted({row["tiers"] for row in rows if row["fast_fraction"] == FRACTION})
    cells = {preset: _cells(rows, preset) for preset in presets}
    return [
        {
            "claim": claim.text,
            "published": claim.published,
            "source": claim.source,
            "fast_fraction": FRACTION,
            "found": {preset: vars(claim.check(cells[preset])) for preset in presets},
        }
        for claim in CLAIMS
    ]


def claims_table(claims: Sequence[dict[str, Any]]) -> str:
    """Format a line per claim and preset."""
    lines = []
    for claim in claims:
        for preset, found in claim["found"].items():
            traces = found["traces"].values()
            spread = f"{min(traces):.2f} to {max(traces):.2f}" if traces else "-"
            mean = "-" if found["figure"] is None else f"{found['figure']:.3f}"
            lines.append([claim["claim"], preset, mean, spread, f"{len(traces)}", found["verdict"]])
    return table(["published claim", "preset", "mean", "traces", "n", "verdict"], lines)


def _cells(rows: Sequence[Row], preset: str) -> dict[str, dict[str, float]]:
    """The slowdown of each policy that has a plan, by trace."""
    cells: dict[str, dict[str, float]] = {}
    for row in rows:
        if (row["tiers"], row["fast_fraction"]) == (preset, FRACTION):
            cell = cells.setdefault(row["trace"], {})
            if (value := slowdown(row)) is not None:
                cell[row["policy"]] = value
    return cells
