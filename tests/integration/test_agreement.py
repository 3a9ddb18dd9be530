# SPDX-License-Identifier: Apache-2.0
"""The simulator against emulated tiers: what a real training is charged is what was simulated.

Compared is what does not depend on this machine's speed: the delays that the
training owes a step, by the residency map, and how much of it is fast.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sentineld.plan.registry import policy
from sentineld.plan.store import load_plan
from sentineld.presets import preset_tiers
from sentineld.simulate.simulate import Outcome, simulate
from tests.integration.test_emulated import Life, wait

pytest.importorskip("torch")

POLICIES = ("first-touch", "static", "slow-only")
STEPS_UNTIL_STEADY = 3


def simulated(folder: Path) -> Outcome:
    """The daemon's own plan and profile, as it saved them, in the simulator."""
    (file,) = (folder / "state" / "sessions").glob("*.npz")
    plan, profile = load_plan(file)
    tiers, by = preset_tiers("cxl", 1), policy(plan.policy)
    return simulate(profile, by, tiers, plan.budget_bytes, plan=plan)


@pytest.fixture(params=["cnn", "perceptron", "transformer"])
def life(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Life]:
    # A batch that is loaded anew in each step lies elsewhere in each, which is not simulated.
    begun = Life(tmp_path, request.param, "--fixed")
    yield begun
    begun.close()


def test_the_simulator_and_emulated_tiers_agree(life: Life) -> None:
    pytest.importorskip("scipy")
    for name in POLICIES:
        budget_bytes = life.manage(name)["budget_bytes"]
        metered = life.meter(STEPS_UNTIL_STEADY + 2)[STEPS_UNTIL_STEADY:]
        expected = simulated(life.folder)
        # The simulator's peak is of all steps, those too in which what was fast moves away.
        peak_bytes = 0 if name == "slow-only" else expected.peak_fast_bytes
        slow_ns = 1e9 * (expected.step_seconds - expected.fast_only_seconds)
        assert slow_ns > 0
        for step in metered:
            fast_bytes = max(one["resident_bytes"][0] for one in step["stretches"])
            print(
                f"{name}: owed {step['delay_owed_ns']} ns, simulated {slow_ns:.0f}; "
                f"fast {fast_bytes >> 10} KiB, simulated {peak_bytes >> 10}"
            )
            assert step["delay_owed_ns"] == pytest.approx(slow_ns, rel=0.05)
            assert fast_bytes == pytest.approx(peak_bytes, abs=0.05 * budget_bytes)
        done = life.daemon.ctl("detach", str(life.pid))
        assert done.returncode == 0, done.stderr
        wait(lambda: life.now()["state"] == "registered")
    life.check_losses()
