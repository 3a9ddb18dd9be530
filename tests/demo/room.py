# SPDX-License-Identifier: Apache-2.0
"""Prepares the machine for the runs, and limits how much of the fast node they can use."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.demo import memory
from tests.demo.events import say

FAST_NODE = 0
SLOW_NODE = 1

RESERVE_BYTES = 512 << 10
"""Fast memory in addition to the budget, for the interpreter's heap, which holds no tensors."""

ON_SLOW_NODE = ("numactl", f"--preferred={SLOW_NODE}")


class Balloon:
    """The process that occupies most of node 0 (tests/demo/balloon.py)."""

    def __init__(self) -> None:
        command = [*ON_SLOW_NODE, sys.executable, "-m", "tests.demo.balloon"]
        self._process = subprocess.Popen(
            [*command, "--node", str(FAST_NODE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def leave(self, leave_bytes: int) -> dict[str, Any]:
        """Make the balloon leave `leave_bytes` of the node to other processes (see balloon.py).

        Waits until the balloon has done so, and returns its reply.
        """
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        print(leave_bytes, file=process.stdin, flush=True)
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"balloon: {process.stderr.read()}")
        reply: dict[str, Any] = json.loads(line)
        left, others = (reply[key] / 2**20 for key in ("left_bytes", "others_bytes"))
        say(f"{left:.1f} MiB left on node {FAST_NODE}, {others:.1f} MiB of it in use")
        return reply

    def end(self) -> None:
        """Let the balloon free its memory and exit; wait for the exit."""
        self._process.communicate()


def make_room(balloon: Balloon, budget_bytes: int) -> dict[str, Any]:
    """Leave only the budget and the reserve free on node 0; call this before the model is built."""
    memory.clear_node(FAST_NODE, SLOW_NODE, except_pids=(balloon.pid,))
    return balloon.leave(budget_bytes + RESERVE_BYTES)


def prepare_machine() -> None:
    """Give all runs the same conditions: no swap, no kernel tiering, fixed watermarks, and the
    libraries in the slow node's page cache."""
    subprocess.run(["swapoff", "-a"], check=True)
    memory.restrict_huge_pages()
    memory.fix_watermarks()
    memory.set_kernel_tiering(False)
    memory.drop_caches()
    memory.compact()
    _warm_page_cache()


def _warm_page_cache() -> None:
    """Read the framework's libraries into the page cache of the slow node.

    Otherwise, library code that a trainer runs for the first time during the training would be read
    into fast memory.
    """
    folder = subprocess.run(
        [sys.executable, "-c", "import importlib.util as u; print(u.find_spec('torch').origin)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    libraries = {
        path.resolve() for path in Path(folder).parent.rglob("*.so*") if path.is_file()
    } | {path.resolve() for path in Path("/usr/lib/x86_64-linux-gnu").glob("libtorch*.so*")}
    command = ["numactl", f"--membind={SLOW_NODE}", "cat", "--", *map(str, sorted(libraries))]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
