# SPDX-License-Identifier: Apache-2.0
"""The rules that the report of the demo's first part must satisfy."""

from __future__ import annotations

from typing import Any

from sentineld.model.records import PAGE_BYTES
from tests.bench.paging.figures import OURS, RAM
from tests.demo.rules import Verdict

Report = dict[str, Any]


def ran(report: Report) -> dict[str, Report]:
    """The contestants that were measured, by name."""
    return {name: one for name, one in report["contestants"].items() if not one["note"]}


def check(report: Report) -> list[Verdict]:
    """Check all rules; return their verdicts."""
    missing = {name: one["note"] for name, one in report["contestants"].items() if one["note"]}
    seen = "; ".join(f"{name}: {note}" for name, note in missing.items())
    verdicts = [Verdict("every training ran", not missing, seen or "all")]
    for name, one in ran(report).items():
        title = report["titles"][name]
        if name != RAM:
            verdicts.append(_losses(title, one))
        if one["limit_bytes"] is not None:
            verdicts.append(_limit(title, one))
        if name == OURS:
            verdicts += _budget(title, one["paging"], report["fast_bytes"])
    return verdicts


def _losses(title: str, one: Report) -> Verdict:
    """Check that the losses, as hexadecimal floats, equal those in RAM, bit for bit."""
    count = one["losses_compared"]
    return Verdict(
        f"{title}: same losses as all in RAM, bit for bit",
        one["losses_equal"] and count > 0,
        f"{count} steps compared",
    )


def _limit(title: str, one: Report) -> Verdict:
    peak_bytes = max(turn["peak_bytes"] for turn in one["turns"])
    return Verdict(
        f"{title}: within the memory limit",
        peak_bytes <= one["limit_bytes"],
        f"{peak_bytes / 2**20:.0f} of {one['limit_bytes'] / 2**20:.0f} MiB",
    )


def _budget(title: str, paging: Report, fast_bytes: int) -> list[Verdict]:
    """Check with the pager's counters that tensors stayed within their share of the memory, that
    the pager stayed within its budget, and that no write failed."""
    budget_bytes = paging["budget_pages"] * PAGE_BYTES
    frames_bytes = paging["frames"] * PAGE_BYTES
    most_bytes = max(frames_bytes, budget_bytes)
    failed = ", and a write failed" if paging["write_error"] else ""
    return [
        Verdict(
            f"{title}: tensors within their share",
            most_bytes <= fast_bytes,
            f"{most_bytes / 2**20:.0f} of {fast_bytes / 2**20:.0f} MiB",
        ),
        Verdict(
            f"{title}: the pager never exceeded its budget",
            paging["overruns"] == 0 and paging["write_error"] == 0,
            f"{paging['overruns']} times{failed}",
        ),
    ]
