# SPDX-License-Identifier: Apache-2.0
"""Runs a script in a new process, in which torch allocates through the shim's C library."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]

DEFER = """
from tests.eager import defer_compiler
defer_compiler()
"""
"""The part of the script that leaves out torch's compiler, so that torch is imported faster."""

LOAD = """
import json, sys
from sentineld.shim import disarm
disarm()
from sentineld.shim.native import Native, ShimUnavailableError, library_path
native = Native(library_path())
native.start()
"""
"""The part of the script that runs before torch is imported."""

SERVE = """
import time
import torch
from sentineld.model.protocol import Alloc, Boundary, Event, Flag
from sentineld.observe.control_segment import ControlSegment
from sentineld.shim import op_times
segment = ControlSegment(native.control_fd)
segment.set_flags(Flag.RECORD)
segment.set_heartbeat(time.monotonic_ns())
native.enable(True)
native.connected(True)
"""
"""The part of the script that lets the shim serve torch's tensors from the heap, and record as if a
daemon were connected."""


def run(script: str, **environment: str) -> Any:
    """Run the script; returns the JSON value that it prints in its last line.

    environment: variables in addition to those of this process.
    """
    command = [sys.executable, "-c", script]
    variables = {**os.environ, **environment}
    done = subprocess.run(
        command, env=variables, capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def shimmed(script: str, **environment: str) -> Any:
    """Run DEFER, LOAD, SERVE and then the script; returns what run() returns."""
    pytest.importorskip("torch")
    return run(DEFER + LOAD + SERVE + script, **environment)
