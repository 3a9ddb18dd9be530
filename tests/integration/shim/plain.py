# SPDX-License-Identifier: Apache-2.0
"""Losses of trainings without the shim, for comparison: plain.py DESCRIPTOR.

Importing torch takes most of the time of a short training. So one process imports torch, and forks
a process for each training. DESCRIPTOR is the forking process's connection to the tests.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[3]
REQUEST_BYTES_MAX = 1 << 20
RUNNING_MAX = 4
"""At most this many trainings are kept. They are stopped (SIGSTOP) until more losses are needed."""
NO_STOP_FILE = "/nonexistent/stop"
PR_SET_PDEATHSIG = 1


class PlainTraining:
    """A training that runs only while losses() waits for it."""

    def __init__(self, pid: int, output: int) -> None:
        self._pid = pid
        self._output = os.fdopen(output)
        self._losses: list[str] = []

    def losses(self, steps: int) -> list[str]:
        """The first `steps` losses. Continues the training if it has computed fewer losses."""
        if len(self._losses) < steps:
            os.kill(self._pid, signal.SIGCONT)
            while len(self._losses) < steps:
                line = self._output.readline()
                assert line.endswith("\n"), "the training without the shim has ended"
                self._losses.append(line.rstrip())
            os.kill(self._pid, signal.SIGSTOP)
        return self._losses[:steps]

    def close(self) -> None:
        """Kill the training."""
        os.kill(self._pid, signal.SIGKILL)
        self._output.close()


class PlainTrainings:
    """The trainings, and the process that forks them. All end when the tests' process ends."""

    def __init__(self) -> None:
        self._server: subprocess.Popen[bytes] | None = None
        self._running: dict[tuple[str, ...], PlainTraining] = {}

    def losses(self, script: str, arguments: Sequence[str], steps: int) -> list[str]:
        """The first `steps` losses of a training without the shim. The training's command line is
        the script, the kind of training, a file whose existence would end it, and options.
        arguments: the kind and the options."""
        key = (script, *arguments)
        training = self._running.pop(key, None) or self._start(script, arguments)
        self._running[key] = training
        if len(self._running) > RUNNING_MAX:
            self._running.pop(next(iter(self._running))).close()
        return training.losses(steps)

    def _start(self, script: str, arguments: Sequence[str]) -> PlainTraining:
        if self._server is None:
            self._connection, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with far:
                self._server = subprocess.Popen(
                    [sys.executable, __file__, str(far.fileno())],
                    pass_fds=[far.fileno()],
                    cwd=ROOT,
                )
        kind, *options = arguments
        request = {
            "argv": [script, kind, NO_STOP_FILE, *options],
            "environment": dict(os.environ),
        }
        reading, writing = os.pipe()
        socket.send_fds(self._connection, [json.dumps(request).encode()], [writing])
        os.close(writing)
        pid = self._connection.recv(64)
        assert pid, "the process that forks the trainings has ended"
        return PlainTraining(int(pid), reading)


def train(request: bytes, output: int) -> None:
    """Run the script of a request in this process. output: descriptor for its standard output."""
    try:
        # Kill this process when its parent ends. Only SIGKILL ends a process that is stopped.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        os.dup2(output, sys.stdout.fileno())
        os.close(output)
        found = json.loads(request)
        os.environ.clear()
        os.environ.update(found["environment"])
        sys.argv = found["argv"]
        modules = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        sys.path[:1] = [str(Path(sys.argv[0]).parent), *filter(None, modules)]
        runpy.run_path(sys.argv[0], run_name="__main__")
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        os._exit(0)


def main() -> None:
    connection = socket.socket(fileno=int(sys.argv[1]))
    import torch
    import torch._dynamo  # imported by the trainings' optimizers  # noqa: F401

    while True:
        request, outputs, _, _ = socket.recv_fds(connection, REQUEST_BYTES_MAX, 1)
        if not request:
            break
        (output,) = outputs
        pid = os.fork()
        if not pid:
            connection.close()
            train(request, output)
        os.close(output)
        connection.send(str(pid).encode())


if __name__ == "__main__":
    main()
