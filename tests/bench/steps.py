# SPDX-License-Identifier: Apache-2.0
"""Runs steps_in_guest.py in a two-tier guest in which sentineld is installed."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from tests.bench import steps_in_guest
from tests.demo import machines
from tests.vm.guest import TREE, Guest
from tests.vm.host import REPOSITORY, MachineError, phase, say

ROUNDS = 2
FAST_MIB = 1024
SLOW_MIB = 1536
KEPT_TRACE = REPOSITORY / "build/bench/demo-model.npz"


def measure() -> dict[str, Any]:
    """Measure in a new guest; return the raw figures."""
    with (
        tempfile.TemporaryDirectory(prefix="sentineld-bench-") as folder,
        Guest(fast_mib=FAST_MIB, slow_mib=SLOW_MIB) as guest,
    ):
        with phase("install in the guest"):
            machines.install(guest, Path(folder))
        command = f"cd {TREE} && exec python3 -u -m tests.bench.steps_in_guest {ROUNDS}"
        process = guest.start(command)
        assert process.stdout is not None
        found: dict[str, Any] = {}
        output: list[str] = []
        for line in process.stdout:
            output.append(line)
            try:
                result = json.loads(line)
            except ValueError:
                continue
            if "say" in result:
                say(result["say"])
            else:
                found = result
        if process.wait() != 0 or not found:
            raise MachineError("the steps were not measured:\n" + "".join(output[-30:]))
        found["accelerator"] = guest.accelerator
        found["kernel_release"] = guest.run("uname -r").stdout.strip()
        guest.check_kernel_log()
        guest.get(steps_in_guest.TRACE, KEPT_TRACE)
        say(f"the model's trace is kept in {KEPT_TRACE}")
        return found
