# SPDX-License-Identifier: Apache-2.0
"""Evaluates the turns that bench-paging has measured: computes a row for each model, fast fraction
and contestant, checks the goals, and formats both as text."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from sentineld.model.energy import MEDIA, EnergyModel, core_joules
from sentineld.model.records import PAGE_BYTES
from tests.bench.figures import table
from tests.bench.goals import at_least, at_most, goal_lines
from tests.bench.shim.figures import geomean, of_pairs

Json = dict[str, Any]

RAM, OURS = "ram", "auto"
MANAGED = (OURS, "sentinel")
CONTESTANTS = (RAM, "swap", "swap-tuned", "zram", "saved-tensors", *MANAGED)
RIVALS = (
    "capuchin", "flashneuron", "lms", "superneurons", "swapadvisor", "tensile", "vdnn",
    "zero-infinity", "zero-offload",
)  # fmt: skip
"""Further policies of sentineld that plan for paged tiers; they compete if asked for (--rivals)."""
POLICIES = (*MANAGED, *RIVALS)
"""The contestants that sentineld manages; each is named after its policy."""

OVER_RAM_MAX = 1.08
"""Limit for the step time of `auto` at a fast fraction of 40 %, divided by the step time in RAM. It
applies to the models for which the bound, divided by the step time in RAM, is within the limit."""
OVER_BOUND_MAX = {0.4: 1.10, 0.2: 1.15}
"""Limits for the step time of `auto` divided by the bound; the keys are fast fractions."""
SWAP_MIN = {"swap": (2.0, 3.0), "zram": (1.5, 2.0)}
"""At a fast fraction of 40 %, a step under swap must take at least this many times as long as in
RAM. The first value is for each model, the second for the geometric mean over the models."""
LATE_SHARE_MAX = 0.01  # limit for accesses that waited for a page, divided by the pages moved
DISK = EnergyModel(MEDIA["nvme"], paged=True)
PREDICTED_WITHIN = 0.07  # allowed error of the prediction, as a share of the predicted time


def rows(model: str, fraction: float, raw: Json) -> list[Json]:
    """Return a row per contestant. raw: see measure() in measure.py.

    Each round has a bound of its own: this round's step time in RAM plus bound_extra_s, the least
    time that paging adds to a step. A drift in the machine's speed thus cancels out.
    """
    ram = [turn["step_s"] for turn in raw["contestants"][RAM]["turns"]]
    bound = [step_s + raw["bound_extra_s"] for step_s in ram]
    ram_joules = [joules(turn, raw["access_joules"]) for turn in raw["contestants"][RAM]["turns"]]
    found = []
    for name, one in raw["contestants"].items():
        row: Json = {"model": model, "fraction": fraction, "contestant": name}
        if one["note"]:
            found.append(row | {"note": one["note"]})
            continue
        columns = {key: [turn[key] for turn in one["turns"]] for key in one["turns"][0]}
        step = of_pairs(columns["step_s"], [1.0] * len(ram))
        used = [joules(turn, raw["access_joules"]) for turn in one["turns"]]
        row |= {
            "step_seconds": round(step.value, 5),
            "ci95": [round(step.low, 5), round(step.high, 5)],
            "ram_step_seconds": round(median(ram), 5),
            "bound_seconds": round(median(bound), 5),
            "over_ram": of_pairs(columns["step_s"], ram).to_json(),
            "over_bound": of_pairs(columns["step_s"], bound).to_json(),
            "limit_bytes": one["limit_bytes"],
            "peak_bytes_used": max(columns["peak_bytes"]),
            "disk_bytes_read": round(median(columns["disk_bytes_read"])),
            "disk_bytes_written": round(median(columns["disk_bytes_written"])),
            "late_faults": median(columns["late_faults"]),
            "cpu_seconds": round(median(columns["cpu_s"]), 5),
            "joules": round(median(used), 3),
            "energy_source": "modelled" if columns["machine_joules"][0] is None else "rapl",
            "energy_over_ram": of_pairs(used, ram_joules).to_json(),
            "losses_equal": one["losses_equal"],
            "rounds": len(ram),
        }
        if name in POLICIES:
            row |= {
                "predicted_seconds": round(one["predicted_s"], 5),
                "over_predicted": round(step.value / one["predicted_s"], 5),
                "moved_bytes": round(one["moved_bytes"]),
                "late_moves": one["late_moves"],
                "diverged_steps": one["diverged_steps"],
            }
        found.append(row)
    return found


def joules(turn: Json, access_joules: float) -> float:
    """Return the energy of a step: of the whole machine if RAPL measured it, else modelled.

    The modelled energy is a sum of four energies: those of the CPU time of training and daemon, of
    one core that is idle during the rest of the step, of the disk's traffic, and of the accesses to
    memory (access_joules).
    """
    if turn["machine_joules"] is not None:
        return float(turn["machine_joules"])
    moved = DISK.moved_joules(turn["disk_bytes_read"], turn["disk_bytes_written"])
    waited_s = max(turn["step_s"] - turn["cpu_s"], 0.0)
    return core_joules(turn["cpu_s"], waited_s) + access_joules + moved


def summarise(models: Mapping[str, Mapping[str, Json]]) -> Json:
    """Return all rows and the goals. models: {model: {fraction: raw}}."""
    found = [
        row
        for model, fractions in models.items()
        for fraction, raw in fractions.items()
        for row in rows(model, float(fraction), raw)
    ]
    return {"rows": found, "goals": goals(found)}


def goals(found: list[Json]) -> Json:
    """Return the value, limit and result of each goal for which there are rows."""
    measured = [row for row in found if "step_seconds" in row]
    limited = [row for row in measured if row["limit_bytes"] is not None]
    above = sum(row["peak_bytes_used"] > row["limit_bytes"] for row in limited)
    made = {
        "rows_above_limit": at_most(above, 0),
        "unequal_losses": at_most(sum(not row["losses_equal"] for row in measured), 0),
    }
    # A training that ends early is a failure under `auto` and `sentinel`, but not under Linux swap
    # and the rivals.
    failed = [row for row in found if row["contestant"] in MANAGED and "note" in row]
    made["managed_not_measured"] = at_most(len(failed), 0)
    ours = [row for row in measured if row["contestant"] == OURS]
    for fraction, limit in OVER_BOUND_MAX.items():
        over = [row["over_bound"]["value"] for row in ours if row["fraction"] == fraction]
        made |= _worst(f"auto_over_bound_at_{fraction:.0%}", over, limit)
    possible = [
        row["over_ram"]["value"]
        for row in ours
        if row["fraction"] == 0.4 and row["bound_seconds"] <= OVER_RAM_MAX * row["ram_step_seconds"]
    ]
    made |= _worst("auto_over_ram_at_40%_where_bound_allows", possible, OVER_RAM_MAX)
    late = [
        row["late_faults"] * PAGE_BYTES / row["moved_bytes"] for row in ours if row["moved_bytes"]
    ]
    made |= _worst("late_faults_share", late, LATE_SHARE_MAX)
    off = [abs(row["over_predicted"] - 1) for row in ours]
    made |= _worst("auto_off_prediction", off, PREDICTED_WITHIN)
    behind = [
        row["step_seconds"] / best["step_seconds"]
        for row in measured
        if row["contestant"] in RIVALS
        for best in ours
        if (best["model"], best["fraction"]) == (row["model"], row["fraction"])
    ]
    if behind:
        made["rival_over_auto_least"] = at_least(min(behind), 1.0)
    for name, (each, mean) in SWAP_MIN.items():
        over = [
            row["over_ram"]["value"]
            for row in measured
            if row["contestant"] == name and row["fraction"] == 0.4
        ]
        if over:
            made[f"{name}_over_ram_least"] = at_least(min(over), each)
            made[f"{name}_over_ram_mean"] = at_least(geomean(over), mean)
    return made


def _worst(name: str, values: list[float], limit: float) -> Json:
    return {name: at_most(max(values), limit)} if values else {}


def text(summary: Json) -> str:
    """Format the rows and the goals as text tables."""
    head = (
        "model", "of peak", "contestant", "step s", "/ RAM", "/ bound", "limit MiB", "used MiB",
        "read MiB", "written MiB", "late faults", "CPU s",
        "J", "J / RAM", "losses",
    )  # fmt: skip
    lines = [table(head, (_cells(row) for row in summary["rows"])), ""]
    lines += goal_lines(summary["goals"])
    return "\n".join(lines)


def _cells(row: Json) -> list[str]:
    first = [row["model"], f"{row['fraction']:.0%}", row["contestant"]]
    if "note" in row:
        return [*first, row["note"], *[""] * 11]
    return [
        *first,
        f"{row['step_seconds']:.3f}",
        f"{row['over_ram']['value']:.3f}",
        f"{row['over_bound']['value']:.3f}",
        "-" if row["limit_bytes"] is None else f"{row['limit_bytes'] / 2**20:.0f}",
        f"{row['peak_bytes_used'] / 2**20:.0f}",
        f"{row['disk_bytes_read'] / 2**20:.0f}",
        f"{row['disk_bytes_written'] / 2**20:.0f}",
        f"{row['late_faults']:.0f}",
        f"{row['cpu_seconds']:.2f}",
        f"{row['joules']:.2f}",
        f"{row['energy_over_ram']['value']:.3f}",
        "equal" if row["losses_equal"] else "DIFFER",
    ]
