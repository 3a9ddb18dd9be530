# SPDX-License-Identifier: Apache-2.0
"""A tree of real processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys

TREE = """
import subprocess, sys, threading
print("running", flush=True)
sys.stdin.readline()
threads = [threading.Thread(target=int) for _ in range(5)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
child = subprocess.Popen(["sleep", "1000"])
print(child.pid, flush=True)
sys.stdin.readline()
child.kill()
child.wait()
print("reaped", flush=True)
sys.stdin.readline()
"""


class Tree:
    """A process that starts and ends a child on command."""

    def __init__(self, *prefix: str) -> None:
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-c", TREE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        # Popen() can return before the kernel has reported the exec to the proc connector. So wait
        # until the program runs.
        assert self._answer() == "running"

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()

    def tell(self, expect_answer: bool = True) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return self._answer() if expect_answer else ""

    def _answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()
