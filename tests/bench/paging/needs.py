# SPDX-License-Identifier: Apache-2.0
"""The memory that a model needs, and the limits that leave room for a share of its tensors."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from sentineld.model.profile import Profile
from sentineld.profile.trace import profile_of
from sentineld.profile.trace_file import load_trace
from tests.bench.traces import Daemon, record
from tests.bench.training_process import Training
from tests.process_figures import anonymous_peak_bytes

STEADY_STEPS = 3
"""After this many steps a training has allocated all of its memory."""


@dataclass(frozen=True)
class Needs:
    """The memory that a model needs without a limit."""

    resident_bytes: int  # largest resident size, without mapped files
    profile: Profile  # profile of a recorded step

    def limit_bytes(self, fraction: float) -> int:
        """The memory limit that leaves room for this fraction of the tensors' peak, and for all
        other memory of the process."""
        return self.resident_bytes - int((1 - fraction) * self.profile.peak_bytes)

    def fast_bytes(self, fraction: float) -> int:
        """This fraction of the tensors' peak, in bytes."""
        return int(fraction * self.profile.peak_bytes)


def needs_of(model: str, folder: Path) -> Needs:
    """Train twice without a limit: first without the shim, to measure the resident size, then under
    the shim, to record the profile. Raises RuntimeError, TimeoutError."""
    training = Training(model)
    try:
        training.steps(STEADY_STEPS)
        resident_bytes = anonymous_peak_bytes(training.pid)
    finally:
        training.close()
    with tempfile.TemporaryDirectory(dir=folder) as name:
        trace = Path(name) / "trace.npz"
        daemon = Daemon(Path(name))
        try:
            record(daemon, model, trace, Path(name), threads=1)
        finally:
            daemon.stop()
        return Needs(resident_bytes, profile_of(load_trace(trace)))
