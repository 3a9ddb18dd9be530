# SPDX-License-Identifier: Apache-2.0
"""Test-and-trial of the published Sentinel policy, live on emulated tiers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sentineld.plan.stall_trial import SETTLING_STEPS, STEPS_PER_BOUNDARY
from tests.integration.test_emulated import REST, ManagedRun, wait

pytest.importorskip("torch")

RATE = "[tiers]\nmigration_bytes_per_s = 30e6\n"
"""The bandwidth is so low that promotions are late by plan, and that the mover's CPU time does not
matter."""


def test_each_boundary_with_late_promotions_is_decided_in_two_steps(tmp_path: Path) -> None:
    run = ManagedRun(tmp_path, "transformer", *REST, alone=REST, config=RATE)
    try:
        begun = run.manage("sentinel", "30%")
        layout, tried = begun["layout_id"], begun["stalls"]["undecided"]

        def decided() -> dict[str, Any] | None:
            nonlocal begun, layout, tried
            now = run.status()
            if now["state"] != "managed":
                return None
            if now["layout_id"] != layout:
                # A correction has entered another plan, whose trials begin anew.
                begun, layout, tried = now, now["layout_id"], sum(now["stalls"].values())
            return None if now["stalls"]["undecided"] else now

        now = wait(decided)
        assert tried > 0
        assert now["stalls"]["stall"] + now["stalls"]["leave"] == tried
        steps = now["step"] - begun["step"]
        print(f"{tried} boundaries in {steps} steps: {now['stalls']}")
        # The first trial can begin a step later than the steps are settled, and the status can be
        # a step late.
        assert steps <= SETTLING_STEPS + STEPS_PER_BOUNDARY * tried + 2
        assert now["barrier_timeouts"] == begun["barrier_timeouts"]
        run.check_losses()
    finally:
        run.close()
