# SPDX-License-Identifier: Apache-2.0
"""torch's messages about a profiler, with and without QuietLoggers."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.unit.shim.shimmed import DEFER, ROOT

pytest.importorskip("torch")

SCRIPT = """
import os, sys
import torch
from sentineld.shim.quiet import QuietLoggers

def profile(quiet):
    global before
    before = torch.randn(5000)
    profiler = torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    )
    profiler.prepare_trace()
    loggers = QuietLoggers() if quiet else None
    profiler.start_trace()
    before = torch.randn(5000)  # frees a block that was allocated before
    profiler.stop_trace()
    if loggers is not None:
        loggers.restore()
        loggers.restore()
    os.write(2, b"|")

profile(quiet=True)
profile(quiet=False)
for variable in ("TORCH_CPP_LOG_LEVEL", "KINETO_LOG_LEVEL"):
    os.environ[variable] = "INFO"
profile(quiet=True)
"""


def test_only_a_quiet_profiler_logs_nothing() -> None:
    unset = {"TORCH_CPP_LOG_LEVEL", "KINETO_LOG_LEVEL"}
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    environment["SENTINELD_SHIM"] = "0"
    command = [sys.executable, "-c", DEFER + SCRIPT]
    done = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True
    )
    quiet, after, as_chosen, end = done.stderr.split("|")
    assert (quiet, end) == ("", "")
    assert bool(after) == bool(as_chosen)  # some releases of torch log nothing
