# SPDX-License-Identifier: Apache-2.0
"""The energy of steps, from counters of a real process and from made-up RAPL counters."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sentineld.host.powercap import EnergyCounters, zones
from sentineld.migrate.ledger import Ledger
from sentineld.model.energy import CORE_W, WAITING_CORE_W, energy_of
from sentineld.model.plan import Plan
from sentineld.session.live.shapes import Planned, Shape
from sentineld.session.live.step_energy import EnergyUse, Source
from tests.unit.links import Linked
from tests.unit.plan.toys import PAGE, toy_plan, toy_profile, two_tiers
from tests.unit.toyprocess import toy_linked

THREADS = 4
TIERS = two_tiers(1e12)
CPU_S = 60.0
"""More CPU time than a test takes, so that the CPU time of the test itself does not matter."""


def plan(access_joules: float) -> Plan:
    made = toy_plan()
    return replace(made, predicted=replace(made.predicted, access_joules=access_joules))


def planned(access_joules: float = 5.0) -> Planned:
    profile = toy_profile()
    return Planned(Shape(THREADS, ""), profile, profile, plan(access_joules), 7 * PAGE, 0.0)


@pytest.fixture
def process() -> Iterator[Linked]:
    """A process at step 10; its CPU time is that of this test."""
    linked = toy_linked(barrier_wait_ns=9_000_000_000)
    yield linked
    linked.close()


def test_steps_are_modelled_without_rapl(process: Linked) -> None:
    ledger = Ledger()
    ledger.moved("promote", "initial", 1 << 40, late=False)  # not part of any step
    use = EnergyUse(process.link, planned(), ledger, TIERS, None)
    assert use.per_step() is None
    process.set(step=11)
    alone = use.per_step()
    assert alone is not None
    assert alone.source is Source.MODELLED
    assert 5.0 <= alone.joules_per_step < 5.0 + CPU_S * CORE_W
    process.set(step=12, barrier_wait_ns=9_000_000_000 + 100_000_000_000)
    ledger.moved("promote", "plan", 2 * 10**12, late=False)
    ledger.moved("demote", "plan", 10**12, late=False)
    found = use.per_step()
    assert found is not None
    waits = THREADS * 100 * WAITING_CORE_W
    moves = energy_of(TIERS).moved_joules(2e12, 1e12) + 300 * CORE_W  # 3 TB at 10 GB/s: 300 s
    least = 5.0 + (waits + moves) / 2
    assert least <= found.joules_per_step < least + CPU_S * CORE_W


def test_rapl_measures_the_machine(process: Linked, tmp_path: Path) -> None:
    zone = tmp_path / "class/powercap/intel-rapl:0"
    zone.mkdir(parents=True)
    (zone / "name").write_text("package-0\n")
    (zone / "max_energy_range_uj").write_text("100000000\n")
    (zone / "energy_uj").write_text("90000000\n")
    counters = EnergyCounters(zones(tmp_path), 0.0)
    use = EnergyUse(process.link, planned(), Ledger(), TIERS, counters)
    assert use.per_step() is None
    process.set(step=14)
    (zone / "energy_uj").write_text("10000000\n")
    found = use.per_step()
    assert found is not None
    assert (found.joules_per_step, str(found.source)) == (pytest.approx(5.0), "rapl")


def test_a_process_that_has_exited_has_no_figure(process: Linked) -> None:
    use = EnergyUse(process.link, planned(), Ledger(), TIERS, None)
    process.set(step=12)
    child = subprocess.Popen(["true"])
    child.wait()
    assert not os.path.exists(f"/proc/{child.pid}")
    process.link.pid = child.pid
    assert use.per_step() is None
    with pytest.raises(ProcessLookupError):
        EnergyUse(process.link, planned(), Ledger(), TIERS, None)
