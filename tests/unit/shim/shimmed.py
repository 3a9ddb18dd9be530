# SPDX-License-Identifier: Apache-2.0
"""Runs a script in a new process, in which torch allocates through the shim's C library."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]

DEFER = """
from tests.eager import defer_compiler
defer_compiler()
"""
"""The part of the script that leaves out torch's compiler, so that torch is imported faster."""

LIBRARY = """
import json, sys
from sentineld.shim import disarm
disarm()
from sentineld.shim.native import Native, ShimUnavailableError, library_path
native = Native(library_path())
"""

START = """
native.start()
"""

LOAD = LIBRARY + START
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


FORKS = """
import os
import torch
for line in sys.stdin:
    request = json.loads(line)
    child = os.fork()
    if child == 0:
        break
    print(os.waitpid(child, 0)[1], flush=True)
else:
    sys.exit()
for fd, path in enumerate(request["output"], 1):
    os.dup2(os.open(path, os.O_WRONLY), fd)
os.environ.update(request["environment"])
exec(request["script"])
"""
"""The part of a script that imports torch and reads requests from standard input. For each request,
it forks; the child runs the requested script, and the parent prints the child's wait status."""


@cache
def _server(preload: str) -> subprocess.Popen[str]:
    """A process that runs DEFER, LIBRARY and FORKS. Its children need not import torch."""
    process = subprocess.Popen(
        [sys.executable, "-c", DEFER + LIBRARY + FORKS],
        env={**os.environ, "LD_PRELOAD": preload},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    atexit.register(process.communicate)
    return process


def shimmed(script: str, **environment: str) -> Any:
    """Run START, SERVE and then the script in a new process, in which torch is loaded after the
    shim's C library. Returns the JSON value that the script prints in its last line.

    environment: variables in addition to those of this process. LD_PRELOAD is possible, too.
    """
    pytest.importorskip("torch")
    server = _server(environment.pop("LD_PRELOAD", ""))
    assert server.stdin is not None
    assert server.stdout is not None
    with tempfile.TemporaryDirectory() as folder:
        output, errors = Path(folder, "output"), Path(folder, "errors")
        for path in (output, errors):
            path.touch()
        request = {
            "script": START + SERVE + script,
            "environment": environment,
            "output": [str(output), str(errors)],
        }
        print(json.dumps(request), file=server.stdin, flush=True)
        status = server.stdout.readline()
        assert status == "0\n", (status, errors.read_text())
        return json.loads(output.read_text().splitlines()[-1])
