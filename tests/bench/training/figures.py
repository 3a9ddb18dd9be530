# SPDX-License-Identifier: Apache-2.0
"""Evaluates the steps that bench-train has measured: computes a row for each model and policy,
checks the goals, and formats both as tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.bench.goals import at_most
from tests.bench.shim.figures import Interval, of_pairs

Json = dict[str, Any]

ALL_FAST, ALL_SLOW, OURS = "fast-only", "slow-only", "auto"

BOUND_MAX, BOUND_HIGH_MAX = 1.10, 1.13
"""Limits on the ratio of each model's step time under `auto` to the bound: one for the median, one
for the upper end of the median's interval."""
PREDICTED_WITHIN = 0.07  # allowed error of the prediction, as a share of the predicted time
INJECTED_WITHIN = 0.005  # allowed relative error of the injected delay


def of_steps(steps: list[float]) -> Interval:
    """Return the median step time in seconds, with its interval."""
    return of_pairs(steps, [1.0] * len(steps))


def median_fast(raw: Json) -> float:
    """Return the model's median all-fast step time in this run, in seconds."""
    return float(np.median(raw["policies"][ALL_FAST]["step_s"]))


def rows(model: str, raw: Json) -> list[Json]:
    """Return a row per policy. raw: {"tiers", "bound_extra_s", "policies": {name: see measure.py}}.

    bound_extra_s is the bound minus the all-fast time. Each round has a bound of its own: the
    all-fast time of this round plus bound_extra_s. A drift in the machine's speed thus cancels out.
    """
    fast = np.array(raw["policies"][ALL_FAST]["step_s"])
    fast_s, bound_extra_s = float(np.median(fast)), raw["bound_extra_s"]
    fast_joules = raw["policies"][ALL_FAST]["energy"]["joules_per_step"]
    found: list[Json] = []
    for name, one in raw["policies"].items():
        row: Json = {"model": model, "policy": name, "tiers": f"emulated:{raw['tiers']}"}
        if one["note"]:
            found.append(row | {"note": one["note"]})
            continue
        step = of_steps(one["step_s"])
        over = of_pairs(one["step_s"], (fast + bound_extra_s).tolist())
        found.append(
            row
            | {
                "step_seconds": round(step.value, 5),
                "fast_only_seconds": round(fast_s, 5),
                "predicted_seconds": round(one["predicted_s"], 5),
                "bound_seconds": round(fast_s + bound_extra_s, 5),
                "ci95": [round(step.low, 5), round(step.high, 5)],
                "losses_equal": one["losses_equal"],
                "rounds": len(one["step_s"]),
                "over_fast_only": of_pairs(one["step_s"], fast.tolist()).to_json(),
                "over_bound": over.to_json(),
                "over_predicted": round(step.value / one["predicted_s"], 5),
                "parts": parts(one, raw["policies"][ALL_FAST], fast_s),
                "owed_seconds": round(one["owed_s"], 6),
                "paid_over_owed": _ratio(one["paid_s"], one["owed_s"]),
                "owed_over_model": _ratio(one["owed_s"], one["model_s"]),
                "daemon_cpu_share": round(sum(one["daemon_s"]) / sum(one["span_s"]), 4),
                "moved_bytes": one["moved_bytes"],
                "late_moves": one["late_moves"],
                "diverged_steps": one["diverged_steps"],
                "joules": round(one["energy"]["joules_per_step"], 3),
                "energy_source": one["energy"]["source"],
                "energy_over_fast_only": _ratio(one["energy"]["joules_per_step"], fast_joules),
            }
        )
    return found


def parts(one: Json, fast: Json, fast_s: float) -> Json:
    """Return medians of the parts of the measured steps, with predictions. Times are in seconds.

    own_extra_seconds: the step time minus delay, wait and the all-fast step time of the same round.
        This time is real, not emulated. The timing model predicts only the part that births take.
    cpu_extra_seconds: the CPU time minus that of the all-fast step of the same round. Load from
        other processes changes this figure less than it changes own_extra_seconds.
    system_extra_seconds: the system time in cpu_extra_seconds, mostly for page faults.
    page_faults: number of faults beyond those of the all-fast step.
    """
    step, wait, delay, system, faults = (
        np.array(one[name]) for name in ("step_s", "waited_s", "delayed_s", "system_s", "faults")
    )
    own_extra = step - wait - delay - np.array(fast["step_s"])
    found = {
        "delay_seconds": delay,
        "wait_seconds": wait,
        "own_extra_seconds": own_extra,
        "cpu_extra_seconds": np.array(one["cpu_s"]) - np.array(fast["cpu_s"]),
        "system_extra_seconds": system - np.array(fast["system_s"]),
        "queued_seconds": np.array(one["queued_s"]),
    }
    wait_s, birth_s = one["predicted_wait_s"], one["predicted_birth_s"]
    return {
        **{name: round(float(np.median(values)), 5) for name, values in found.items()},
        "page_faults": round(float(np.median(faults - np.array(fast["faults"])))),
        "predicted_delay_seconds": round(one["predicted_s"] - wait_s - birth_s - fast_s, 5),
        "predicted_wait_seconds": round(wait_s, 5),
        "predicted_birth_seconds": round(birth_s, 5),
        "predicted_late_moves": round(one["predicted_late_moves"], 1),
    }


def _ratio(over: float, under: float) -> float | None:
    return round(over / under, 5) if under > 0 else None


def summarise(models: Mapping[str, Json]) -> Json:
    """Return all models' rows and the goals."""
    found = [row for model, raw in models.items() for row in rows(model, raw)]
    return {"rows": found, "goals": goals(found)}


def goals(found: list[Json]) -> Json:
    """Return each goal's value, limit and result. The goals for `auto` are left out if `auto` was
    not measured."""
    measured = [row for row in found if "step_seconds" in row]
    injected = [
        abs(row["paid_over_owed"] - 1) for row in measured if row["paid_over_owed"] is not None
    ]
    injected += [
        abs(row["owed_over_model"] - 1)
        for row in measured
        if row["policy"] == ALL_SLOW and row["owed_over_model"] is not None
    ]
    unequal = sum(not row["losses_equal"] for row in measured)
    diverged = sum(row["diverged_steps"] for row in measured)
    made = {
        "unequal_losses": at_most(unequal, 0),
        "diverged_steps": at_most(diverged, 0),
        "injected_error_worst": at_most(max(injected, default=0.0), INJECTED_WITHIN),
    }
    ours = [row for row in measured if row["policy"] == OURS]
    if ours:
        over = [row["over_bound"] for row in ours]
        off = max(abs(row["over_predicted"] - 1) for row in ours)
        made |= {
            "auto_over_bound_worst": at_most(max(one["value"] for one in over), BOUND_MAX),
            "auto_over_bound_high_worst": at_most(max(one["high"] for one in over), BOUND_HIGH_MAX),
            "auto_off_prediction_worst": at_most(off, PREDICTED_WITHIN),
        }
    return made


def table(summary: Json) -> str:
    """Format text tables: a line per model and policy, the parts of their steps, then the goals."""
    lines = [
        "emulated tiers: slow memory is emulated by delays from the timing model",
        f"{'model':<10} {'policy':<12} {'step s':>8} {'95 %':>17} {'/ fast':>7} {'/ bound':>20} "
        f"{'/ predicted':>11} {'daemon':>7} {'J':>7} {'J / fast':>8}  losses",
    ]
    for row in summary["rows"]:
        if "step_seconds" not in row:
            lines.append(f"{row['model']:<10} {row['policy']:<12} {row['note']}")
            continue
        low, high = row["ci95"]
        over = row["over_bound"]
        spread = f"{over['value']:.3f} {over['low']:.3f}-{over['high']:.3f}"
        equal = "equal" if row["losses_equal"] else "DIFFER"
        between = f"{low:.3f}-{high:.3f}"
        lines.append(
            f"{row['model']:<10} {row['policy']:<12} {row['step_seconds']:8.3f} {between:>17} "
            f"{row['over_fast_only']['value']:7.3f} {spread:>20} {row['over_predicted']:11.3f} "
            f"{row['daemon_cpu_share']:7.1%} {row['joules']:7.2f} "
            f"{row['energy_over_fast_only']:8.3f}  {equal}"
        )
    lines += ["", *_parts_table(summary["rows"]), ""]
    for name, goal in summary["goals"].items():
        mark = "holds" if goal["holds"] else "FAILS"
        lines.append(f"{mark}  {name:<27} {goal['value']:.4f}  (limit {goal['limit']})")
    return "\n".join(lines)


def _parts_table(found: list[Json]) -> list[str]:
    lines = [
        "parts of a step in ms (predicted); own extra: real costs beyond all-fast (births)",
        f"{'model':<10} {'policy':<12} {'delay':>17} {'wait':>17} {'own extra':>17} {'CPU':>8} "
        f"{'system':>8} {'faults':>8} {'queued':>8} {'late moves':>11}",
    ]
    for row in found:
        if "parts" not in row:
            continue
        part = {name: 1e3 * value for name, value in row["parts"].items()}
        delay = f"{part['delay_seconds']:.1f} ({part['predicted_delay_seconds']:.1f})"
        wait = f"{part['wait_seconds']:.1f} ({part['predicted_wait_seconds']:.1f})"
        own = f"{part['own_extra_seconds']:.1f} ({part['predicted_birth_seconds']:.1f})"
        late = f"{row['late_moves']} ({row['parts']['predicted_late_moves']:.0f})"
        lines.append(
            f"{row['model']:<10} {row['policy']:<12} {delay:>17} {wait:>17} "
            f"{own:>17} {part['cpu_extra_seconds']:8.1f} "
            f"{part['system_extra_seconds']:8.1f} "
            f"{row['parts']['page_faults']:8} {part['queued_seconds']:8.1f} {late:>11}"
        )
    return lines
