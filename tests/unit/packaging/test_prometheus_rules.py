# SPDX-License-Identifier: Apache-2.0
"""promtool's checks of the rules and configurations for Prometheus, and unit tests of the rules."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
FILES = ROOT / "docs/prometheus"


@pytest.fixture
def promtool() -> str:
    found = shutil.which("promtool", path=ROOT / "build") or shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is missing; `make unit` unpacks it")
    return found


def said(*command: str | Path) -> str:
    """The output of a command that must succeed."""
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ["sentineld.yml", "sentineld-fleet.yml"])
def test_a_configuration_and_its_rules_are_valid(promtool: str, name: str) -> None:
    assert "rules found" in said(promtool, "check", "config", FILES / name)


def test_the_rules_find_stragglers_and_missing_ranks(promtool: str) -> None:
    assert "SUCCESS" in said(promtool, "test", "rules", "fleet_rules.test.yml")


def test_alerts_tell_machines_apart_and_do_not_depend_on_the_scrape_interval(promtool: str) -> None:
    assert "SUCCESS" in said(promtool, "test", "rules", "rules.test.yml")
