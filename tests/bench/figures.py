# SPDX-License-Identifier: Apache-2.0
"""Evaluates bench-profile's raw figures: computes medians and ratios, checks the goals, and formats
the results as tables."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

Json = dict[str, Any]

EMULATED = (
    "Instructions are counted in a QEMU guest with one CPU under -icount shift=0: caches, TLBs, "
    "exception latency and other CPUs are not modelled. A string instruction counts once per "
    "repetition (clearing a page: 4096). Steps are timed in a QEMU guest with two CPUs, so only "
    "their ratios are meaningful. Draining is timed natively."
)

MINOR, ZERO_FILLED = "zero_page_read", "zero_filled_write"
UNWATCHED = {
    "module_loaded": "module loaded, no session yet",
    "module_idle": "module idle after a session",
    "session_elsewhere": "another process has a session",
}
"""States of the module in which faults of a process without a session are measured."""


@dataclass(frozen=True)
class Spread:
    """Median, minimum and maximum of repeated measurements of one figure."""

    median: float
    least: float
    most: float
    count: int

    def to_json(self) -> Json:
        """Return the fields by name, rounded to 4 decimal places."""
        return {name: round(value, 4) for name, value in asdict(self).items()}


@dataclass(frozen=True)
class Goal:
    """A figure that must not exceed a limit."""

    name: str
    limit: float
    what: str


GOALS = (
    Goal("armed_over_minor_fault", 1.0, "armed read fault / zero-page read fault"),
    Goal("idle_over_minor_fault", 0.12, "overhead in unwatched processes / zero-page read fault"),
    Goal("profiled_over_plain_step", 3.0, "profiled step / plain step"),
    Goal("framework_unseen_share", 0.01, "share of the framework's (tensor, layer) pairs not seen"),
    Goal("drain_100k_ms", 5.0, "drain 100,000 samples from the log, ms"),
    Goal("daemon_rss_mib", 80.0, "daemon RSS while managing, MiB"),
)


def spread(values: Sequence[float]) -> Spread:
    """Return the spread of the values; there must be at least one."""
    return Spread(statistics.median(values), min(values), max(values), len(values))


def summarise(raw: Json) -> Json:
    """Compute the figures of the parts that were measured (instructions, steps, drain), and check
    their goals."""
    found: Json = {}
    if "instructions" in raw:
        found |= _of_instructions(raw["instructions"])
    if "steps" in raw:
        found |= _of_steps(raw["steps"])
    if "drain" in raw:
        drained = raw["drain"]["milliseconds"]
        found["drain_100k_ms"] = drained["drain"]["median"]
        found["join_100k_ms"] = drained["join_samples"]["median"]
    found["goals"] = {
        goal.name: {
            "value": found[goal.name],
            "limit": goal.limit,
            "holds": found[goal.name] <= goal.limit,
        }
        for goal in GOALS
        if goal.name in found
    }
    return found


def page_cost(series: Json) -> float:
    """Instructions per page: the median of the rounds' means."""
    return spread(series["mean"]).median


def _of_instructions(raw: Json) -> Json:
    absent, armed = raw["module_absent"], raw["armed"]
    minor, zero_filled = page_cost(absent[MINOR]), page_cost(absent[ZERO_FILLED])
    added = {state: page_cost(raw[state][MINOR]) - minor for state in UNWATCHED}
    return {
        "armed_over_minor_fault": round(page_cost(armed["armed_read"]) / minor, 4),
        "armed_over_zero_filled_fault": round(page_cost(armed["armed_read"]) / zero_filled, 4),
        "armed_write_over_minor_fault": round(page_cost(armed["armed_write"]) / minor, 4),
        "idle_over_minor_fault": round(max(added.values()) / minor, 4),
        "idle_over_minor_fault_by_state": {
            UNWATCHED[state]: round(extra / minor, 4) for state, extra in added.items()
        },
        "alternatives": {one["name"]: _alternative(one) for one in raw["observers"]},
    }


def _alternative(observer: Json) -> Json:
    if "missing" in observer:
        return {"available": False, "why": observer["missing"]}
    extra = observer["observed"] - observer["plain"]
    seen = observer["seen_pages"]
    return {
        "available": True,
        "instructions_per_seen_page": round(extra / seen, 1) if seen else None,
        "instructions_per_touched_page": round(extra / observer["touched_pages"], 1),
        "instructions_per_epoch": round(extra / observer["epochs"]),
        "program_slowdown": round(observer["observed"] / observer["plain"], 4),
        "read_recall": observer["read_recall"],
        "write_recall": observer["write_recall"],
        "writes_seen_as_reads": observer["writes_seen_as_reads"],
        "wrongly_seen": observer["wrongly_seen"],
    }


def _of_steps(raw: Json) -> Json:
    rounds = raw["rounds"]
    by_round = [one["profiled"] / statistics.median(one["plain"]) for one in rounds]
    metered = [
        statistics.median(one["metered"]) / statistics.median(one["managed"]) for one in rounds
    ]
    resident = [kib for one in rounds for kib in one["daemon"]["managed_resident_kib"]]
    daemon = [one["daemon"] for one in rounds]
    user, system = (
        statistics.median(one[f"managed_{kind}_seconds"] / one["managed_seconds"] for one in daemon)
        for kind in ("user", "system")
    )
    return {
        "profiled_over_plain_step": round(statistics.median(by_round), 3),
        "metered_over_managed_step": round(statistics.median(metered), 3),
        "daemon_rss_mib": round(max(resident) / 1024, 1),
        "framework_unseen_share": round(1 - raw["agreement"]["seen_share"], 6),
        "framework_pairs": raw["agreement"]["pairs"],
        "framework_differences": raw["agreement"]["differences"],
        "daemon_user_share_while_managing": round(user, 4),
        "daemon_system_share_while_managing": round(system, 4),
    }


def tables(profile: Json) -> str:
    """Format the result as Markdown tables."""
    raw = profile["raw"]
    parts = [_goal_table(profile)]
    if "instructions" in raw:
        parts += [_fault_table(raw["instructions"]), _alternative_table(profile["alternatives"])]
    if "steps" in raw:
        parts.append(_step_table(raw["steps"], profile))
    if "drain" in raw:
        parts.append(_drain_table(raw["drain"]))
    return "\n\n".join([*parts, profile["emulated"]]) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Format a Markdown table: the first column left-aligned, the others right-aligned."""
    cells = [list(head), *map(list, rows)]
    widths = [max(len(row[at]) for row in cells) for at in range(len(head))]
    lines = [
        "| " + " | ".join(
            cell.ljust(width) if at == 0 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ) + " |"
        for row in cells
    ]  # fmt: skip
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join([lines[0], "| " + " | ".join(rule) + " |", *lines[1:]])


def _goal_table(profile: Json) -> str:
    rows = [
        (goal.what, f"{one['value']:g}", f"{goal.limit:g}", "yes" if one["holds"] else "NO")
        for goal in GOALS
        if (one := profile["goals"].get(goal.name))
    ]
    return table(("goal", "value", "limit", "holds"), rows)


def _fault_table(raw: Json) -> str:
    minor = page_cost(raw["module_absent"][MINOR])
    groups = [
        *(("module absent", name, series) for name, series in raw["module_absent"].items()),
        *(
            (text, name, series)
            for state, text in UNWATCHED.items()
            for name, series in raw[state].items()
        ),
        *(("watched process", name, series) for name, series in raw["armed"].items()),
    ]
    rows = []
    for state, name, series in groups:
        means, middle = spread(series["mean"]), spread(series["median"])
        rows.append(
            (
                f"{name.replace('_', ' ')} ({state})",
                f"{means.median:.0f}",
                f"{means.least:.0f}..{means.most:.0f}",
                f"{middle.median:.0f}",
                f"{means.median / minor:.2f}",
            )
        )
    return table(
        ("instructions", "per page", "range of rounds", "median page", "/ minor fault"), rows
    )


def _alternative_table(alternatives: Json) -> str:
    rows = [
        (
            name.replace("_", " "),
            f"{one['instructions_per_touched_page']:.0f}",
            f"{one['instructions_per_seen_page']:.0f}"
            if one["instructions_per_seen_page"]
            else "-",
            f"{one['program_slowdown']:.3f}",
            f"{one['read_recall']:.3f}",
            f"{one['write_recall']:.3f}",
            f"{one['wrongly_seen']}",
        )
        if one["available"]
        else (f"{name.replace('_', ' ')}: {one['why']}", "", "", "", "", "", "")
        for name, one in alternatives.items()
    ]
    head = (
        "instructions",
        "per touched page",
        "per page seen",
        "slowdown",
        "reads seen",
        "writes seen",
        "wrongly seen",
    )
    return table(head, rows)


def _step_table(raw: Json, profile: Json) -> str:
    rows = []
    for kind in ("plain", "profiled", "managed", "metered"):
        values = [
            value
            for one in raw["rounds"]
            for value in (one[kind] if isinstance(one[kind], list) else [one[kind]])
        ]
        seconds = spread(values)
        span = f"{seconds.least:.2f}..{seconds.most:.2f}"
        rows.append((f"{kind} step, s", f"{seconds.median:.2f}", span, str(seconds.count)))
    for kind in ("user", "system"):
        share = profile[f"daemon_{kind}_share_while_managing"]
        rows.append((f"daemon while managing, {kind} time, share of a CPU", f"{share:.3f}", "", ""))
    return table(("in the guest", "median", "spread", "count"), rows)


def _drain_table(raw: Json) -> str:
    rows = [
        (
            name.replace("_", " "),
            f"{one['median']:.2f}",
            f"{one['least']:.2f}..{one['most']:.2f}",
        )
        for name, one in raw["milliseconds"].items()
    ]
    return table((f"{raw['samples']} samples, ms", "median", "spread"), rows)
