# SPDX-License-Identifier: Apache-2.0
"""Verdicts on published claims, for made-up results of bench-policies."""

from __future__ import annotations

import json

import pytest

from sentineld.policies.registry import names
from tests.bench.claims import CLAIMS, Ahead, Within, checked, claims_table
from tests.bench.policy_figures import Row


def row(trace: str, policy: str, slowdown: float | None, tiers: str = "cxl") -> Row:
    return {
        "trace": trace,
        "tiers": tiers,
        "fast_fraction": 0.2,
        "policy": policy,
        "step_seconds": slowdown and 3.0 * slowdown,
        "fast_only_seconds": 3.0,
    }


@pytest.mark.parametrize(
    ("slowdowns", "verdict", "mean"),
    [
        ({"a": 1.05, "b": 1.09}, "reproduced", (1.05 * 1.09) ** 0.5),
        ({"a": 1.05, "b": 1.10}, "in part", (1.05 * 1.10) ** 0.5),
        ({"a": 1.05, "b": None}, "in part", 1.05),
        ({"a": 1.2, "b": None}, "not reproduced", 1.2),
        ({"a": None, "b": None}, "no plan", None),
    ],
)
def test_a_limit_of_the_slowdown(
    slowdowns: dict[str, float | None], verdict: str, mean: float | None
) -> None:
    claim = Within("sentinel", 1.09, "", "")
    cells = {
        trace: {} if value is None else {"sentinel": value} for trace, value in slowdowns.items()
    }
    found = claim.check(cells)
    assert found.verdict == verdict
    assert found.figure == (None if mean is None else pytest.approx(mean))
    assert found.without == tuple(trace for trace, value in slowdowns.items() if value is None)


@pytest.mark.parametrize(
    ("slowdowns", "verdict"),
    [
        ({"a": 1.6, "b": 1.1}, "reproduced"),
        ({"a": 1.6, "b": 1.1, "c": None}, "in part"),
        ({"a": 1.9, "b": 1.1}, "not reproduced"),
        ({"a": None}, "no plan"),
    ],
)
def test_a_limit_of_the_mean_slowdown(slowdowns: dict[str, float | None], verdict: str) -> None:
    claim = Within("autotm", 1.383, "", "", on_average=True)
    cells = {
        trace: {} if value is None else {"autotm": value} for trace, value in slowdowns.items()
    }
    assert claim.check(cells).verdict == verdict
    assert claim.text == "autotm within 38% of all-fast on average"


@pytest.mark.parametrize(("name", "speed"), [("autotm", 1 - 0.277), ("g10", 0.903)])
def test_published_means_of_the_speed_limit_the_mean_step(name: str, speed: float) -> None:
    (claim,) = (one for one in CLAIMS if isinstance(one, Within) and one.policy == name)
    assert claim.on_average
    assert claim.most == pytest.approx(1 / speed)


def test_no_claim_takes_step_times_for_saved_memory() -> None:
    assert not [claim for claim in CLAIMS if "saves" in claim.published]


@pytest.mark.parametrize(
    ("leads", "verdict"),
    [
        ([1.3, 1.3], "reproduced"),
        ([1.2, 1.1], "in part"),
        ([0.9, 1.05], "not reproduced"),
        ([], "no plan"),
    ],
)
def test_a_lead(leads: list[float], verdict: str) -> None:
    cells = {str(number): {"one": 2.0, "other": 2.0 * lead} for number, lead in enumerate(leads)}
    cells["no plan"] = {"other": 1.0}
    found = Ahead("one", "other", 0.37, "", "").check(cells)
    assert found.verdict == verdict
    assert list(found.traces.values()) == pytest.approx(leads)
    assert found.without == ("no plan",)


def test_claims_are_checked_for_each_preset() -> None:
    rows = [
        row("gpt2", "sentinel", 1.1),
        row("gpt2", "ial", 1.65),
        row("gpt2", "sentinel", 1.0, "optane"),
        row("gpt2", "ial", None, "optane"),
        row("gpt2", "sentinel", 9.0) | {"fast_fraction": 0.1},
    ]
    found = {claim["claim"]: claim["found"] for claim in json.loads(json.dumps(checked(rows)))}
    over_ial = found["sentinel ahead of ial by 37%"]
    assert over_ial["cxl"]["figure"] == pytest.approx(1.5)
    assert (over_ial["cxl"]["verdict"], over_ial["optane"]["verdict"]) == ("reproduced", "no plan")
    within = found["sentinel within 8% of all-fast"]
    assert (within["cxl"]["verdict"], within["optane"]["verdict"]) == (
        "not reproduced",
        "reproduced",
    )
    lines = claims_table(checked(rows)).splitlines()
    assert len(lines) == 2 + 2 * len(CLAIMS)


def test_claims_name_policies() -> None:
    for claim in CLAIMS:
        assert {claim.policy, getattr(claim, "other", claim.policy)} <= set(names())
