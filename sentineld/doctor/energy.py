# SPDX-License-Identifier: Apache-2.0
"""The check of energy counters."""

from __future__ import annotations

from sentineld.doctor.findings import Finding, Status, System
from sentineld.host.powercap import zones


def rapl(system: System) -> Finding:
    """Whether the machine's energy can be measured. RAPL is not required: without it, the energy of
    a step is modelled."""
    found = zones(system.root / "sys")
    if not found:
        return Finding(
            "rapl",
            Status.SKIP,
            "no RAPL counters, as in most virtual machines: the energy of steps is modelled",
        )
    unreadable = [zone.name for zone in found if zone.read_uj() is None]
    if unreadable:
        return Finding(
            "rapl", Status.SKIP, f"only root can read {', '.join(unreadable)}; the daemon can"
        )
    return Finding("rapl", Status.OK, f"counters of {', '.join(zone.name for zone in found)}")
