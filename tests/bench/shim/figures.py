# SPDX-License-Identifier: Apache-2.0
"""Computes ratios and their intervals from pairs of steps, checks goals and formats tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Json = dict[str, Any]
Figures = Mapping[str, Sequence[float]]
Floats = npt.NDArray[np.float64]

BOOTSTRAPS = 2000


class Ratio(NamedTuple):
    """A ratio of CPU times of two modes."""

    name: str
    mode: str  # numerator
    base: str  # denominator


GLIBC = "glibc"
"""The baseline: the mean of both plain processes.

With glibc, either every step of a process returns freed memory to the kernel or none does. This
depends on where the process's heap happens to end. One process alone is therefore not a fair
baseline.
"""

RATIOS = (
    Ratio("plain_over_plain", "plain-again", "plain"),
    Ratio("tcmalloc_over_plain", "tcmalloc", GLIBC),
    Ratio("dormant_over_plain", "dormant", GLIBC),
    Ratio("recording_over_plain", "recording", GLIBC),
    Ratio("replay_over_plain", "replay", GLIBC),
    Ratio("replay_over_tcmalloc", "replay", "tcmalloc"),
)

LIMITS = {
    "dormant_over_plain": 1.01,
    "recording_over_plain": 1.03,
    "replay_over_plain": 0.95,
    "replay_over_tcmalloc": 1.00,
}
"""Limits for geometric means. A limit is met if the lower end of the 95 % interval does not exceed
it."""

PLAIN_WITHIN = 0.01
"""Largest allowed difference between the CPU times of the two plain processes, as a share. If the
difference is larger, the other ratios are meaningless."""

ARENA_GEOMEAN_MAX, ARENA_WORST_MAX = 1.05, 1.10
RSS_WORST_MAX = 1.10


class Interval(NamedTuple):
    """A figure with its 95 % bootstrap interval."""

    value: float
    low: float
    high: float

    def to_json(self) -> Json:
        """Return the fields by name, rounded to 5 decimal places."""
        return {name: round(value, 5) for name, value in self._asdict().items()}


def geomean(values: Sequence[float] | Floats) -> float:
    """Return the geometric mean of positive values."""
    return float(np.exp(np.log(np.asarray(values, np.float64)).mean()))


def of_pairs(over: Sequence[float], under: Sequence[float]) -> Interval:
    """Return the median, with its interval, of the ratios over[i] / under[i] of all pairs i."""
    ratios = np.asarray(over, np.float64) / np.asarray(under, np.float64)
    medians = _bootstrapped(ratios, np.random.default_rng(1))
    return _interval(float(np.median(ratios)), medians)


def of_models(
    over: Mapping[str, Sequence[float]], under: Mapping[str, Sequence[float]]
) -> Interval:
    """Take the median ratio of each model's pairs; return the geometric mean of these medians.

    The interval comes from resampling pairs within each model.
    """
    random = np.random.default_rng(1)
    ratios = [np.asarray(over[model], np.float64) / under[model] for model in over]
    medians = np.array([_bootstrapped(one, random) for one in ratios])
    value = geomean([float(np.median(one)) for one in ratios])
    return _interval(value, np.exp(np.log(medians).mean(axis=0)))


def enough_pairs(cpu_s: Figures) -> bool:
    """Whether the plain processes' CPU times differ by at most PLAIN_WITHIN, in the median."""
    ratios = np.asarray(cpu_s["plain-again"], np.float64) / cpu_s["plain"]
    return abs(float(np.median(ratios)) - 1) <= PLAIN_WITHIN


def glibc(cpu_s: Figures) -> list[float]:
    """Return, for each round, the mean CPU time of the two plain processes' steps, in seconds."""
    return [
        (one + other) / 2 for one, other in zip(cpu_s["plain"], cpu_s["plain-again"], strict=True)
    ]


def _bootstrapped(ratios: Floats, random: np.random.Generator) -> Floats:
    """Return the medians of resampled ratios, shape (BOOTSTRAPS,)."""
    picked = random.integers(len(ratios), size=(BOOTSTRAPS, len(ratios)))
    medians: Floats = np.median(ratios[picked], axis=1)
    return medians


def _interval(value: float, bootstraps: Floats) -> Interval:
    low, high = np.percentile(bootstraps, [2.5, 97.5])
    return Interval(value, float(low), float(high))


def summarise(models: Mapping[str, Json]) -> Json:
    """Return rows, geometric means and goals.

    models: {name: {"cpu_s": {mode: [..]}, "minor_faults": {mode: [..]}, "max_rss_bytes":
        {mode: n}, "losses_equal": {mode: bool}, "replay": {...}, "grouped": {...}}}.
        Values with the same index belong to the same round. "replay" and "grouped" hold figures
        of the planned arena: under an all-fast plan (measure.py) and on two tiers (tiered.py).
    """
    rows = [row for model, raw in models.items() for row in _rows(model, raw)]
    cpu = {
        mode: {model: raw["cpu_s"][mode] for model, raw in models.items()}
        for mode in next(iter(models.values()))["cpu_s"]
    }
    cpu[GLIBC] = {model: glibc(raw["cpu_s"]) for model, raw in models.items()}
    means = {ratio.name: of_models(cpu[ratio.mode], cpu[ratio.base]) for ratio in RATIOS}
    arena = [raw["grouped"]["resident_over_peak"] for raw in models.values()]
    found = {
        "rows": rows,
        "geomean": {name: round(mean.value, 5) for name, mean in means.items()},
        "geomean_ci95": {name: [round(m.low, 5), round(m.high, 5)] for name, m in means.items()},
        "arena_over_peak": {"geomean": round(geomean(arena), 5), "worst": round(max(arena), 5)},
    }
    return found | {"goals": _goals(found, means, rows)}


def _rows(model: str, raw: Json) -> list[Json]:
    rows: list[Json] = []
    for mode, cpu in raw["cpu_s"].items():
        row = {
            "model": model,
            "mode": mode,
            "steps": len(cpu),
            "cpu_s": round(float(np.median(cpu)), 5),
            "over_plain": of_pairs(cpu, glibc(raw["cpu_s"])).to_json(),
            "minor_faults": float(np.median(raw["minor_faults"][mode])),
            "max_rss_bytes": raw["max_rss_bytes"][mode],
            "losses_equal": raw["losses_equal"][mode],
        }
        rows.append(row | (raw["replay"] if mode == "replay" else {}))
    grouped = {"model": model, "mode": "grouped", **raw["grouped"]}
    return [*rows, grouped]


def _goals(found: Json, means: Mapping[str, Interval], rows: Sequence[Json]) -> Json:
    noise = means["plain_over_plain"].value
    goals: Json = {
        "plain_over_plain": {
            "value": noise,
            "limit": f"1 +- {PLAIN_WITHIN}",
            "holds": abs(noise - 1) <= PLAIN_WITHIN,
        }
    }
    for name, limit in LIMITS.items():
        goals[name] = {
            "value": means[name].value,
            "limit": limit,
            "holds": means[name].low <= limit,
        }
    arena = found["arena_over_peak"]
    plain, replay, grouped = (
        [row for row in rows if row["mode"] == mode] for mode in ("plain", "replay", "grouped")
    )
    resident = [
        one["max_rss_bytes"] / other["max_rss_bytes"]
        for one, other in zip(replay, plain, strict=True)
    ]
    planned = min(row["planned_share"] for row in [*replay, *grouped])
    for name, value, limit in (
        ("arena_over_peak_geomean", arena["geomean"], ARENA_GEOMEAN_MAX),
        ("arena_over_peak_worst", arena["worst"], ARENA_WORST_MAX),
        ("charged_over_budget_worst", max(row["charged_over_budget"] for row in grouped), 1.0),
        ("max_rss_over_plain_worst", max(resident), RSS_WORST_MAX),
        ("diverged_steps", sum(row["diverged_steps"] for row in [*replay, *grouped]), 0),
        ("unequal_losses", sum(not row["losses_equal"] for row in rows), 0),
    ):
        goals[name] = {"value": value, "limit": limit, "holds": value <= limit}
    goals["planned_share_least"] = {"value": planned, "limit": 1.0, "holds": planned >= 1.0}
    return goals


def tables(found: Json) -> str:
    """Format text tables: a line for each model and each mode, except "grouped" (two tiers); a line
    for the arena of each model; then the goals."""
    lines = [
        f"{'model':<10} {'mode':<12} {'pairs':>5} {'CPU s':>7} {'/ plain':>17} {'faults':>8} "
        f"{'RSS MiB':>8}"
    ]
    for row in found["rows"]:
        if row["mode"] == "grouped":
            continue
        ratio = row["over_plain"]
        spread = f"{ratio['value']:.3f} {ratio['low']:.3f}-{ratio['high']:.3f}"
        lines.append(
            f"{row['model']:<10} {row['mode']:<12} {row['steps']:>5} {row['cpu_s']:7.3f} "
            f"{spread:>17} {row['minor_faults']:8.0f} {row['max_rss_bytes'] / 2**20:8.0f}"
        )
    lines += [
        "",
        "arena on two tiers: resident over peak, charged over budget; planned: lower of both plans",
        f"{'model':<10} {'/ peak':>7} {'/ budget':>8} {'planned':>8} {'outside':>8} "
        f"{'diverged':>8}",
    ]
    replay = {row["model"]: row for row in found["rows"] if row["mode"] == "replay"}
    for row in found["rows"]:
        if row["mode"] == "grouped":
            one = replay[row["model"]]
            planned = min(row["planned_share"], one["planned_share"])
            lines.append(
                f"{row['model']:<10} {row['resident_over_peak']:7.3f} "
                f"{row['charged_over_budget']:8.3f} {planned:8.1%} {one['outside_share']:8.3%} "
                f"{row['diverged_steps'] + one['diverged_steps']:8}"
            )
    lines.append("")
    for name, goal in found["goals"].items():
        mark = "holds" if goal["holds"] else "FAILS"
        lines.append(f"{mark}  {name:<26} {goal['value']:.4f}  (limit {goal['limit']})")
    return "\n".join(lines)
