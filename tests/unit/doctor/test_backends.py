# SPDX-License-Identifier: Apache-2.0
"""The check names the backend that runs and says why no better backend runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sentineld.doctor import backends
from sentineld.doctor.findings import Status, System


def verdict(name: str, problem: str = "", fix: str = "") -> dict[str, Any]:
    return {
        "name": name,
        "tells": "everything",
        "usable": not problem,
        "problem": problem,
        "fix": fix,
    }


def test_the_best_backend_is_well() -> None:
    found = backends.finding([verdict("module"), verdict("shim")])
    assert (found.status, found.cause) == (Status.OK, "module is used: everything")


def test_a_lesser_backend_says_why_not_each_better_one() -> None:
    found = backends.finding(
        [verdict("module", "not loaded", "load it"), verdict("damon", "taken"), verdict("shim")]
    )
    assert found.status is Status.WARN
    assert found.cause == "shim is used: everything; not module: not loaded; not damon: taken"
    assert found.fix == "load it"


def test_the_daemon_s_word_counts_where_it_answers(system: System) -> None:
    answer = {"backends": [verdict("module", "another version"), verdict("damon")]}
    assert backends.backend(replace(system, daemon=answer)).cause.startswith("damon is used")
    assert backends.backend(system).status in (Status.OK, Status.WARN)
