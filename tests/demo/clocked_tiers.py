# SPDX-License-Identifier: Apache-2.0
"""Configures the daemon's tiers so that it plans for the modelled clock.

The daemon measures steps with the guest's time, in which an emulated step takes many times as long
as on the modelled clock. For moves and for cache misses, this factor differs from the factor for a
step. A plan made from measurements in the guest's time would assume more bandwidth for moves, in
relation to the computation, than the modelled machine has. Therefore the demo measures the
migration bandwidth on the modelled clock. The config then gets the bandwidths of the modelled
machine, divided by the dilation: the time of a step in the daemon's profile, divided by its
modelled time, both with all memory fast.
"""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

from sentineld.host.presets import FIGURES, preset_tiers
from sentineld.host.tiers import discover
from sentineld.migrate.calibrate import measure
from sentineld.model.tiers import Tiers
from tests.demo.clock_device import clock_ns
from tests.demo.events import request
from tests.demo.prices import PRESET, THREADS

MOVER_SHARE = 0.55
"""Assumed migration bandwidth of the daemon's mover, as a share of the measured one. The
measurement moves idle pages of one process; the mover moves pages that another CPU accesses. With a
measured bandwidth of 495 MB/s, a plan for 275 MB/s had steps of 1.07 s, nearly without waits, and a
plan for 493 MB/s had steps of 1.36 s."""

CONFIG = Path("/etc/sentineld/config.d/tiers.toml")


def measured_bytes_per_s(clock: Path) -> float:
    """The migration bandwidth on the modelled clock, in the slower direction. No training may run
    meanwhile."""
    request("count", tensors=[])
    try:
        rates = measure(discover(), clock_ns=clock_ns(clock))
    finally:
        request("counted")
    return min(rates.demote_bytes_per_s, rates.promote_bytes_per_s)


def modelled_tiers(measured_bytes_per_s: float) -> Tiers:
    """The modelled machine's tiers. measured_bytes_per_s: migration bandwidth of idle pages."""
    migration_bytes_per_s = measured_bytes_per_s * MOVER_SHARE
    return replace(preset_tiers(PRESET, THREADS), migration_bytes_per_s=migration_bytes_per_s)


def config_text(tiers: Tiers, dilation: float) -> str:
    """The text of a config file with the bandwidths of two tiers, divided by the dilation."""
    fast, slow = tiers.tiers
    bandwidths = (
        fast.read_bytes_per_s,
        fast.write_bytes_per_s,
        slow.read_bytes_per_s,
        slow.write_bytes_per_s,
        tiers.migration_bytes_per_s,
    )
    lines = (
        f"{name} = {value / dilation!r}" for name, value in zip(FIGURES, bandwidths, strict=True)
    )
    return "\n".join(["[tiers]", *lines, ""])


def configure(tiers: Tiers, dilation: float) -> None:
    """Write the config file, and restart the daemon, because a running daemon does not reload its
    tiers. No training may be managed meanwhile."""
    CONFIG.write_text(config_text(tiers, dilation))
    subprocess.run(["systemctl", "restart", "sentineld"], check=True)
