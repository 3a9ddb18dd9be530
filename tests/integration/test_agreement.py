# SPDX-License-Identifier: Apache-2.0
"""The simulator against emulated tiers: what a real training is charged is what was simulated.

Compared is what does not depend on this machine's speed: the delays that the
training owes a step, by the residency map, and how much of it is fast. Where
pages move, each small part of the training takes a pause, so that the mover
keeps up with it on a machine that has other things to do; a step in which pages
were left behind or moved late all the same is passed over. Policies that leave the mover no
time to spare (auto) are compared in virtual time: tests/unit/shim/test_agreement.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from sentineld.host.presets import preset_tiers
from sentineld.plan.store import load_plan
from sentineld.policies.registry import policy
from sentineld.simulate.simulate import Outcome, simulate
from tests.integration.test_emulated import Life, wait

pytest.importorskip("torch")

STANDING = ("first-touch", "static", "slow-only")
FAST_FOR_SENTINEL = "40%"
"""The short-lived tensors of all three fit in it."""

STEPS_UNTIL_STEADY = 3
PAUSE_MS = 20
STEPS_COMPARED = 3
METERED_AT_ONCE = 4
METERED_MAX = 40


def simulated(life: Life) -> Outcome:
    """The daemon's own plan and profile, as it saved them, in the simulator."""
    layout_id = life.now()["layout_id"]
    (file,) = (life.folder / "state" / "sessions").glob(f"*.{layout_id}.npz")
    plan, profile = load_plan(file)
    tiers, by = preset_tiers("cxl", 1), policy(plan.policy)
    return simulate(profile, by, tiers, plan.budget_bytes, plan=plan)


def slow_ns_of(outcome: Outcome) -> float:
    """What its steady step pays for slow pages."""
    fast_s = outcome.fast_only_seconds + outcome.stall_seconds
    return 1e9 * (outcome.step_seconds - fast_s)


def leave(life: Life) -> None:
    """Let another policy have its turn."""
    done = life.daemon.ctl("detach", str(life.pid))
    assert done.returncode == 0, done.stderr
    wait(lambda: life.now()["state"] == "registered")


@pytest.fixture(params=["cnn", "perceptron", "transformer"])
def kind(request: pytest.FixtureRequest) -> str:
    model: str = request.param
    return model


@pytest.fixture
def life(kind: str, tmp_path: Path) -> Iterator[Life]:
    # A batch that is loaded anew in each step lies elsewhere in each, which is not simulated.
    begun = Life(tmp_path, kind, "--fixed")
    yield begun
    begun.close()


@pytest.fixture
def slow_life(kind: str, tmp_path: Path) -> Iterator[Life]:
    begun = Life(tmp_path, kind, "--fixed", alone=("--pause", str(PAUSE_MS)))
    yield begun
    begun.close()


def test_they_agree_where_pages_stay(life: Life) -> None:
    pytest.importorskip("scipy")
    for name in STANDING:
        budget_bytes = life.manage(name)["budget_bytes"]
        metered = life.meter(STEPS_UNTIL_STEADY + 2)[STEPS_UNTIL_STEADY:]
        expected = simulated(life)
        # The simulator's peak is of all steps, those too in which what was fast moves away.
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
        leave(life)
    life.check_losses()


def carried_out(life: Life, expected: Outcome) -> list[dict[str, Any]]:
    """Metered steps in which as much has moved as simulated, and no more of it late."""
    moves = (expected.bytes_promoted + expected.bytes_demoted, expected.late_moves)
    found: list[dict[str, Any]] = []
    for _ in range(METERED_MAX // METERED_AT_ONCE):
        metered = life.meter(METERED_AT_ONCE)
        found += [step for step in metered if (step["moved_bytes"], step["late_moves"]) == moves]
        if len(found) >= STEPS_COMPARED:
            break
    return found


@pytest.mark.alone  # the mover has to keep up, which it doesn't beside two guests
def test_they_agree_where_pages_move(slow_life: Life) -> None:
    budget_bytes = slow_life.manage("sentinel", FAST_FOR_SENTINEL)["budget_bytes"]
    slow_life.meter(STEPS_UNTIL_STEADY)
    expected = simulated(slow_life)
    assert expected.bytes_promoted + expected.bytes_demoted > 0
    slow_ns = slow_ns_of(expected)
    steps = carried_out(slow_life, expected)
    assert len(steps) >= STEPS_COMPARED
    for step in steps:
        print(
            f"owed {step['delay_owed_ns']} ns, simulated {slow_ns:.0f}; "
            f"moved {step['moved_bytes'] >> 10} KiB"
        )
        assert step["charged_bytes_max"] <= budget_bytes
    # A move that comes later than simulated, though in time, may change what one of them costs.
    usual_ns = median(step["delay_owed_ns"] for step in steps)
    assert usual_ns == pytest.approx(slow_ns, rel=0.05, abs=1000)
    slow_life.check_losses()
