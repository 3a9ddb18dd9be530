# SPDX-License-Identifier: Apache-2.0
"""The list of policies."""

from __future__ import annotations

import json
import re
from pathlib import Path

from sentineld.policies.registry import managing_names, names
from tests.unit.cli.answering import answering


def test_every_policy_is_listed_with_a_summary(tmp_path: Path) -> None:
    with answering(tmp_path) as ctl:
        header, *lines = ctl.output("policy", "list").splitlines()
        listed = json.loads(ctl.output("policy", "list", "--json"))["policies"]
    assert header.split() == ["NAME", "USE", "BUDGET", "SUMMARY"]
    assert [line.split()[0] for line in lines] == names()
    assert [one["name"] for one in listed] == names()
    assert [one["name"] for one in listed if one["manages"]] == managing_names()
    # The first paragraph of the docstring of a policy's module is "Policy `NAME`: SUMMARY."
    summary = re.compile(r"(?!.{0,10}: ).+\.")
    assert [one["name"] for one in listed if not summary.fullmatch(one["summary"])] == []
    budgets = {one["name"]: one["charges_budget"] for one in listed}
    assert budgets["auto"]
    assert not budgets["fast-only"]
