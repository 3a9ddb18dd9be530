# SPDX-License-Identifier: Apache-2.0
"""Stall trials (sentineld/plan/stall_trial.py) of a live training on emulated tiers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.test_emulated import REST, ManagedRun, wait
from tests.stall_trials import decisions_in_time

pytest.importorskip("torch")

RATE = "[tiers]\nmigration_bytes_per_s = 60e6\n"
"""The bandwidth is so low that some promotions are late by plan, and that the mover's CPU time does
not matter."""


def test_each_boundary_with_late_promotions_is_decided_in_two_steps(tmp_path: Path) -> None:
    run = ManagedRun(tmp_path, "transformer", *REST, alone=REST, config=RATE)
    try:
        run.manage("sentinel", "30%")
        tried = [decisions_in_time(run.session, wait)]
        for fast in ("35%", "25%"):
            if tried[-1]:
                break
            done = run.ctl("attach", "--fast", fast)
            assert done.returncode == 0, done.stderr
            wait(lambda: run.status()["state"] == "managed")
            tried.append(decisions_in_time(run.session, wait))
        assert any(tried)
        run.check_losses()
    finally:
        run.close()
