# SPDX-License-Identifier: Apache-2.0
"""The check of energy counters, on a made-up root folder."""

from __future__ import annotations

from sentineld.doctor.energy import rapl
from sentineld.doctor.findings import Status, System
from tests.unit.files import write

ZONE = "sys/class/powercap/intel-rapl:0"


def test_a_machine_without_counters_needs_none(system: System) -> None:
    found = rapl(system)
    assert found.status is Status.SKIP
    assert "modelled" in found.cause


def test_counters_that_can_be_read(system: System) -> None:
    for name, text in (("name", "package-0"), ("max_energy_range_uj", "100"), ("energy_uj", "7")):
        write(system.root, f"{ZONE}/{name}", f"{text}\n")
    assert (rapl(system).status, rapl(system).cause) == (Status.OK, "counters of package-0")


def test_counters_that_only_root_can_read(system: System) -> None:
    write(system.root, f"{ZONE}/name", "package-0\n")
    write(system.root, f"{ZONE}/max_energy_range_uj", "100\n")
    # Tests may run as root, and root can read a file of any mode. Therefore a directory takes the
    # file's place: reading a directory fails for every user.
    (system.root / ZONE / "energy_uj").mkdir()
    found = rapl(system)
    assert found.status is Status.SKIP
    assert "package-0" in found.cause
