# SPDX-License-Identifier: Apache-2.0
"""The simulator and emulated tiers agree on the delays and fast memory of real trainings.

Only figures that do not depend on this machine's speed are compared: the delay
that a step owes for its slow pages, and the fast memory used. If pages move,
these figures depend on when each move ends. tests/unit/shim/test_agreement.py
therefore uses virtual time to test plans that move pages.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sentineld.host.presets import preset_tiers
from sentineld.plan.store import load_plan
from sentineld.policies.registry import policy
from sentineld.simulate.simulate import Outcome, simulate
from tests.integration.test_emulated import REST, ManagedRun, wait

pytest.importorskip("torch")

POLICIES_WITHOUT_MOVES = ("first-touch", "static", "slow-only")
STEPS_UNTIL_STEADY = 3


def simulated(run: ManagedRun) -> Outcome:
    """Simulate the plan and profile that the daemon saved."""
    layout_id = run.status()["layout_id"]
    (file,) = (run.folder / "state" / "sessions").glob(f"*.{layout_id}.npz")
    plan, profile, _ = load_plan(file)
    tiers, by = preset_tiers("cxl", 1), policy(plan.policy)
    return simulate(profile, by, tiers, plan.budget_bytes, plan=plan)


def slow_ns_of(outcome: Outcome) -> float:
    """Return the delay for slow pages in a steady step of the simulation, in ns."""
    fast_s = outcome.fast_only_seconds + outcome.stall_seconds
    return 1e9 * (outcome.step_seconds - fast_s)


def detach(run: ManagedRun) -> None:
    """Detach, so that another policy can be used."""
    done = run.daemon.ctl("detach", str(run.pid))
    assert done.returncode == 0, done.stderr
    wait(lambda: run.status()["state"] == "registered")


@pytest.fixture(
    params=[
        "cnn",
        pytest.param("perceptron", marks=pytest.mark.long),
        pytest.param("transformer", marks=pytest.mark.long),
    ]
)
def kind(request: pytest.FixtureRequest) -> str:
    model: str = request.param
    return model


@pytest.fixture
def run(kind: str, tmp_path: Path) -> Iterator[ManagedRun]:
    # With --fixed, all steps use the same batch. Newly loaded batches would have another address in
    # each step, and the simulator does not model this.
    started = ManagedRun(tmp_path, kind, "--fixed", alone=REST)
    yield started
    started.close()


def test_delays_and_fast_memory_agree_without_moves(run: ManagedRun) -> None:
    pytest.importorskip("scipy")
    for name in POLICIES_WITHOUT_MOVES:
        budget_bytes = run.manage(name)["budget_bytes"]
        metered = run.meter(STEPS_UNTIL_STEADY + 2)[STEPS_UNTIL_STEADY:]
        expected = simulated(run)
        # The simulator's peak includes the first steps, in which some pages are still fast even
        # under the policy slow-only.
        peak_bytes = 0 if name == "slow-only" else expected.peak_fast_bytes
        slow_ns = slow_ns_of(expected)
        assert slow_ns > 0
        for step in metered:
            fast_bytes = max(one["resident_bytes"][0] for one in step["stretches"])
            print(
                f"{name}: owed {step['delay_owed_ns']} ns, simulated {slow_ns:.0f}; "
                f"fast {fast_bytes >> 10} KiB, simulated {peak_bytes >> 10}"
            )
            assert step["delay_owed_ns"] == pytest.approx(slow_ns, rel=0.05)
            assert fast_bytes == pytest.approx(peak_bytes, abs=0.05 * budget_bytes)
        detach(run)
    run.check_losses()
