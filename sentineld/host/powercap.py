# SPDX-License-Identifier: Apache-2.0
"""Reads the energy counters of RAPL (running average power limit) from the powercap class.

The kernel offers a zone for each processor package (package-0) and, on servers, one for the memory
of each package (a subzone named dram). A zone's counter energy_uj counts microjoules and begins
again at 0 after max_energy_range_uj (Documentation/power/powercap/powercap.rst). Only root may read
it (mode 0400), because frequent readings reveal what other users' programs compute (CVE-2020-8694).
Other zones are left out: core and uncore are parts of a package, psys contains the packages, and
the control type intel-rapl-mmio repeats the packages of intel-rapl. On AMD, the control type is
intel-rapl, too. Virtual machines usually have no zones.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sentineld.host.sysfs import read_text

CLASS = "class/powercap"
REFRESH_S = 1.0
"""Shortest time between two readings of a machine's counters. The sums are published to users who
may not read the counters themselves, and frequent readings would reveal other users' secrets."""

_ZONE = re.compile(r"intel-rapl:\d+(:\d+)?")


@dataclass(frozen=True)
class Zone:
    """One energy counter."""

    name: str  # package-N, or package-N-dram
    path: Path
    range_uj: int  # the largest value of the counter

    def read_uj(self) -> int | None:
        """The counter, or None if it cannot be read."""
        return _number(self.path / "energy_uj")


def zones(sys_root: Path = Path("/sys")) -> tuple[Zone, ...]:
    """The zones of packages and their memory, in the order of their names."""
    found = []
    for path in sorted((sys_root / CLASS).glob("intel-rapl:*")):
        name, range_uj = read_text(path / "name"), _number(path / "max_energy_range_uj")
        if not _ZONE.fullmatch(path.name) or not name or not range_uj:
            continue
        if name == "dram":
            parent = read_text(path.with_name(path.name.rpartition(":")[0]) / "name")
            found.append(Zone(f"{parent}-dram", path, range_uj))
        elif name.startswith("package-"):
            found.append(Zone(name, path, range_uj))
    return tuple(sorted(found, key=lambda zone: zone.name))


class EnergyCounters:
    """The energy that each zone has used since the object was made. Thread-safe.

    A counter's wrap is detected only if the zone uses less than max_energy_range_uj between two
    readings. At 400 W, a zone uses this energy in about ten minutes.
    """

    def __init__(
        self,
        found: tuple[Zone, ...],
        refresh_s: float = REFRESH_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """found: zones that can be read. refresh_s: shortest time between two readings."""
        self._refresh_s, self._clock = refresh_s, clock
        self._lock = threading.Lock()
        self._read_s = clock()
        self._last_uj = {zone: zone.read_uj() for zone in found}
        self._sums_uj = dict.fromkeys(found, 0)

    @classmethod
    def of_machine(
        cls, sys_root: Path = Path("/sys"), refresh_s: float = REFRESH_S
    ) -> EnergyCounters | None:
        """The machine's counters; None if there are none or they cannot be read."""
        found = tuple(zone for zone in zones(sys_root) if zone.read_uj() is not None)
        return cls(found, refresh_s) if found else None

    def by_zone(self) -> dict[str, float]:
        """Joules by the name of the zone."""
        with self._lock:
            now_s = self._clock()
            if now_s - self._read_s >= self._refresh_s:
                self._read_s = now_s
                self._add()
            return {zone.name: sum_uj / 1e6 for zone, sum_uj in self._sums_uj.items()}

    def joules(self) -> float:
        """Joules of all zones."""
        return sum(self.by_zone().values())

    def _add(self) -> None:
        for zone, last_uj in self._last_uj.items():
            now_uj = zone.read_uj()
            if now_uj is None:
                continue  # the driver was unloaded, or the package is offline
            if last_uj is not None:
                wrapped_uj = zone.range_uj if now_uj < last_uj else 0
                self._sums_uj[zone] += now_uj - last_uj + wrapped_uj
            self._last_uj[zone] = now_uj


def _number(path: Path) -> int | None:
    text = read_text(path)
    return int(text) if text is not None and text.isdigit() else None
