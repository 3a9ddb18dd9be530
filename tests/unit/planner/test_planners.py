# SPDX-License-Identifier: Apache-2.0
"""Planning in child processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sentineld.base.errors import SentinelError
from sentineld.plan.check import verify
from sentineld.planner.planners import Planners
from sentineld.policies.registry import policy
from tests.unit.plan.toys import LARGE, PAGE, large_profile, toy_plan, toy_profile, two_tiers

ROOT = Path(__file__).parents[3]
BUDGET = 7 * LARGE * PAGE
MEMORY = 1 << 30
TIME_S = 600
UID = os.getuid()


def test_a_planning_process_answers_and_reports_errors() -> None:
    profile, tiers = large_profile(), two_tiers()
    planners = Planners(1, MEMORY, TIME_S)
    plan = planners.plan(UID, "fast-only", profile, tiers, BUDGET)
    assert plan.policy == "fast-only"
    with pytest.raises(SentinelError, match="no policy is named 'nonsense'"):
        planners.plan(UID, "nonsense", profile, tiers, BUDGET)
    planners.set_limits(MEMORY, 0.001, nice=0, fallbacks=True)
    with pytest.raises(SentinelError, match="planning took over"):
        planners.plan(UID, "auto", profile, tiers, BUDGET)


def test_another_policy_plans_if_the_chosen_one_cannot(caplog: pytest.LogCaptureFixture) -> None:
    # The scratch, the only short-lived tensor, does not fit in the budget.
    profile, tiers, budget = large_profile(), two_tiers(), LARGE * PAGE // 2
    plan = Planners(1, MEMORY, TIME_S).plan(UID, "sentinel", profile, tiers, budget)
    assert plan.policy == "auto"
    verify(plan, profile, budget)
    assert plan.notes[-1].startswith("sentinel failed (infeasible as published: ")
    assert plan.notes[-1].endswith("), so auto made the plan")
    assert "auto made the plan, because sentinel failed" in caplog.text
    with pytest.raises(SentinelError, match="infeasible as published"):
        Planners(1, MEMORY, TIME_S, fallbacks=False).plan(UID, "sentinel", profile, tiers, budget)


def test_no_other_policy_plans_if_none_can() -> None:
    planners = Planners(1, MEMORY, TIME_S)
    with pytest.raises(SentinelError, match="infeasible: only 1023 B of fast memory remains"):
        planners.plan(UID, "sentinel", large_profile(), two_tiers(), 1023)


def test_a_plan_without_moves_needs_no_spare() -> None:
    live = policy("fast-only").plan(large_profile(), two_tiers(), BUDGET)
    assert not len(live.moves)
    planners = Planners(1, MEMORY, TIME_S)
    assert planners.spare(UID, large_profile(), two_tiers(), BUDGET, live) is None


def test_no_spare_is_planned_on_paged_tiers(caplog: pytest.LogCaptureFixture) -> None:
    live, profile = toy_plan(), toy_profile()
    assert len(live.moves)
    # Every planning process exceeds this time limit, and Planners then logs a message. So an empty
    # log shows that no planning process has run.
    planners = Planners(1, MEMORY, 0.001)
    caplog.set_level("INFO")
    assert planners.spare(UID, profile, two_tiers(), BUDGET, live) is None
    assert "no spare plan: planning took over" in caplog.text
    caplog.clear()
    paged = replace(two_tiers(), paged=True)
    assert planners.spare(UID, profile, paged, BUDGET, live) is None
    assert not caplog.text


def test_nothing_is_imported_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trap = "open({!r}, 'w')\nraise SystemExit('imported from the working directory')\n"
    for name in ("pickle", "numpy", "ctypes", "sentineld"):
        (tmp_path / f"{name}.py").write_text(trap.format(str(tmp_path / "imported")))
    monkeypatch.chdir(tmp_path)
    plan = Planners(1, MEMORY, TIME_S).plan(UID, "fast-only", large_profile(), two_tiers(), BUDGET)
    assert plan.policy == "fast-only"
    assert not (tmp_path / "imported").exists()


def test_nothing_is_planned_after_the_files_were_replaced(tmp_path: Path) -> None:
    """The script below takes the place of a daemon that runs while `make install` replaces its
    files."""
    shutil.copytree(ROOT / "sentineld", tmp_path / "sentineld")
    script = f"""
from pathlib import Path
import sentineld
from sentineld.base.errors import SentinelError
from sentineld.planner.planners import Planners
from tests.unit.plan.toys import large_profile, two_tiers

def plan():
    try:
        print(planners.plan(0, "fast-only", large_profile(), two_tiers(), {BUDGET}).policy)
    except SentinelError as error:
        print(error)

planners = Planners(1, {MEMORY}, {TIME_S})
plan()
Path(sentineld.__file__).with_name("entry.py").write_text("")
plan()
"""
    done = subprocess.run(
        [sys.executable, "-P", "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"},
        capture_output=True,
        text=True,
        timeout=TIME_S,
    )
    assert done.stdout.splitlines() == [
        "fast-only",
        "the files of sentineld have been replaced since the daemon started (restart it; that of"
        " the unit: systemctl restart sentineld)",
    ], done.stderr
