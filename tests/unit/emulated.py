# SPDX-License-Identifier: Apache-2.0
"""A machine with emulated tiers, and the residency map of a process on it."""

from __future__ import annotations

import fcntl
import os

import numpy as np

from sentineld.config import Config, TierOverrides
from sentineld.host.presets import preset_tiers
from sentineld.machine.choose import substrate_of
from sentineld.machine.machine import Machine
from sentineld.model import protocol


def machine() -> Machine:
    """Emulated tiers, without probes and process events."""
    config = Config(fast="20%", tiers=TierOverrides(emulated="cxl"))
    return Machine(config, substrate_of(config), preset_tiers("cxl", 1), [])


def residency() -> int:
    """A memfd with a residency segment: the header of the residency map, without any pages."""
    fd = os.memfd_create("residency", os.MFD_ALLOW_SEALING)
    header = np.zeros(1, protocol.RESIDENCY_DTYPE)
    header["magic"], header["version"] = protocol.RESIDENCY_MAGIC, protocol.SHIM_VERSION
    header["page_bytes"] = 4096
    os.write(fd, header.tobytes().ljust(4096, b"\0"))
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return fd
