# SPDX-License-Identifier: Apache-2.0
"""Energy counters read from made-up files."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentineld.host.powercap import EnergyCounters, Zone, zones

RANGE_UJ = 1_000_000


class Machine:
    """A sysfs with powercap zones, and `now_s`, a clock that the test sets."""

    def __init__(self, root: Path) -> None:
        self.root, self.now_s = root, 0.0

    def zone(self, folder: str, name: str, energy_uj: int | None = 0) -> Path:
        path = self.root / "class/powercap" / folder
        path.mkdir(parents=True)
        (path / "name").write_text(f"{name}\n")
        (path / "max_energy_range_uj").write_text(f"{RANGE_UJ}\n")
        if energy_uj is not None:
            (path / "energy_uj").write_text(f"{energy_uj}\n")
        return path / "energy_uj"

    def counters(self, refresh_s: float = 0.0) -> EnergyCounters:
        return EnergyCounters(zones(self.root), refresh_s, lambda: self.now_s)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def server(machine: Machine) -> dict[str, Path]:
    """Two packages with memory, and further zones that would count the same energy again."""
    files = {
        "package-0": machine.zone("intel-rapl:0", "package-0"),
        "package-0-dram": machine.zone("intel-rapl:0:1", "dram"),
        "package-1": machine.zone("intel-rapl:1", "package-1"),
        "package-1-dram": machine.zone("intel-rapl:1:0", "dram"),
    }
    machine.zone("intel-rapl:0:0", "core")
    machine.zone("intel-rapl:2", "psys")
    machine.zone("intel-rapl-mmio:0", "package-0")
    return files


def test_packages_and_their_memory_are_counted_once(machine: Machine) -> None:
    files = server(machine)
    assert [zone.name for zone in zones(machine.root)] == list(files)
    counters = machine.counters()
    for at, file in enumerate(files.values(), 1):
        file.write_text(f"{at * 1000}\n")
    assert counters.by_zone() == {
        "package-0": 0.001,
        "package-0-dram": 0.002,
        "package-1": 0.003,
        "package-1-dram": 0.004,
    }
    assert counters.joules() == pytest.approx(0.010)


@given(st.lists(st.integers(0, RANGE_UJ - 1), max_size=20), st.integers(0, RANGE_UJ - 1))
def test_wrapped_counters_add_up(used_uj: list[int], begin_uj: int) -> None:
    class Counter(Zone):
        value_uj = begin_uj

        def read_uj(self) -> int | None:
            return Counter.value_uj

    counters = EnergyCounters((Counter("package-0", Path(), RANGE_UJ),), 0.0)
    for size in used_uj:
        Counter.value_uj = (Counter.value_uj + size) % RANGE_UJ
        counters.joules()
    assert counters.joules() == pytest.approx(sum(used_uj) / 1e6)


def test_counters_are_read_at_most_once_in_a_while(machine: Machine) -> None:
    file = machine.zone("intel-rapl:0", "package-0")
    counters = machine.counters(refresh_s=1.0)
    file.write_text("500000\n")
    machine.now_s = 0.9
    assert counters.joules() == 0.0
    machine.now_s = 1.0
    assert counters.joules() == 0.5
    file.write_text("600000\n")
    assert counters.joules() == 0.5


def test_a_counter_that_disappears_keeps_its_sum(machine: Machine) -> None:
    file = machine.zone("intel-rapl:0", "package-0")
    counters = machine.counters()
    file.write_text("500000\n")
    assert counters.joules() == 0.5
    file.unlink()
    assert counters.joules() == 0.5
    file.write_text("600000\n")
    assert counters.joules() == pytest.approx(0.6)


def test_a_machine_without_readable_counters_has_none(machine: Machine) -> None:
    assert EnergyCounters.of_machine(machine.root) is None
    machine.zone("intel-rapl:0", "package-0", None)
    assert zones(machine.root)[0].read_uj() is None
    assert EnergyCounters.of_machine(machine.root) is None
    machine.zone("intel-rapl:1", "package-1")
    found = EnergyCounters.of_machine(machine.root)
    assert found is not None
    assert list(found.by_zone()) == ["package-1"]
