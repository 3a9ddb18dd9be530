# SPDX-License-Identifier: Apache-2.0
"""The list of checks: distinct names, a fix for each problem, and the exit status."""

from __future__ import annotations

from sentineld.base.errors import EXIT_STATUS
from sentineld.doctor.checks import CHECKS, examine, first_failure
from sentineld.doctor.findings import Finding, Status, System


def test_check_names_are_distinct_and_problems_have_a_fix(system: System) -> None:
    findings = examine(system)
    assert len({found.check for found in findings}) == len(CHECKS)
    for found in findings:
        assert found.code in EXIT_STATUS
        assert found.status in (Status.OK, Status.SKIP) or found.fix, found


def test_the_first_failure_sets_the_exit_status() -> None:
    findings = [
        Finding("a", Status.WARN, "", code="bcc-missing"),
        Finding("b", Status.FAIL, "", code="no-second-tier"),
        Finding("c", Status.FAIL, "", code="bcc-missing"),
    ]
    assert first_failure(findings) is findings[1]
    assert first_failure(findings[:1]) is None
