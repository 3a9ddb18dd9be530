# SPDX-License-Identifier: Apache-2.0
"""bench-sensitivity's variants, summaries and report, from hand-written rows."""

from __future__ import annotations

import pytest

from sentineld.host.presets import preset_tiers
from sentineld.model.tiers import Overlap
from tests.bench.policy_figures import Row
from tests.bench.sensitivity import VARIANTS, report, summary_of


def rows(variant: str, steps: dict[str, float | None]) -> list[Row]:
    """Rows of one trace. steps: the step time of each policy in seconds. The all-fast step takes
    one second."""
    return [
        {
            "trace": "bert",
            "tiers": variant,
            "fast_fraction": 0.2,
            "policy": name,
            "kind": "hardware" if name == "memory-mode" else "software",
            "step_seconds": seconds,
            "bound_seconds": 0.9,
            "fast_only_seconds": 1.0,
            "plan_seconds": 1.0,
            "note": "",
        }
        for name, seconds in steps.items()
    ]


def test_a_variant_changes_the_preset() -> None:
    assert VARIANTS["cxl"].tiers(2) == preset_tiers("cxl", 2)
    assert VARIANTS["socket"].tiers(2) == preset_tiers("cxl", 12)
    assert VARIANTS["tiers+yield"].tiers(2).overlap == Overlap.TIERS
    assert VARIANTS["tiers+yield"].tiers(2).moves_yield


def test_the_best_other_policy_keeps_the_budget_and_has_all_plans() -> None:
    steps = {"auto": 1.1, "fast-only": 1.0, "memory-mode": 1.1, "g10": None, "tpp": 1.3, "ial": 1.4}
    summary = summary_of(rows("cxl", steps), "cxl")
    assert summary["auto"] == pytest.approx(1.1)
    assert (summary["best_other"], summary["best_other_slowdown"]) == ("tpp", pytest.approx(1.3))
    assert summary["bound"] == pytest.approx(0.9)


def test_without_another_policy_the_summary_has_only_auto() -> None:
    summary = summary_of(rows("cxl", {"auto": 1.1}), "cxl")
    assert summary["best_other"] is summary["best_other_slowdown"] is None


def test_the_report_gives_ranges_and_says_where_auto_is_beaten() -> None:
    found = [*rows("cxl", {"auto": 1.1, "tpp": 1.3}), *rows("remote", {"auto": 1.02, "tpp": 1.01})]
    text = report(found, [summary_of(found, name) for name in ("cxl", "remote")])
    assert "auto: 1.020 to 1.100" in text
    assert "the best other policy: 1.010 to 1.300" in text
    assert "DOES NOT HOLD: cells in which another policy beats auto by more than 0.1%: 1" in text
    assert "bert, remote: tpp by 0.98%" in text
