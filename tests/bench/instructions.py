# SPDX-License-Identifier: Apache-2.0
"""Counts the instructions of page faults, and of observers of page accesses, in a guest.

Under -icount, the guest's only CPU has a time stamp counter that counts executed instructions.
The host therefore adds no noise; caches, TLBs and exception latency do not affect the counts.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from tests.vm.guest import Guest
from tests.vm.host import REPOSITORY, MachineError, phase
from tests.vm.rootfs import BUILD_PLACE, build_module, in_root

ROUNDS = 7
PAGES = 8192
OBSERVER_ROUNDS = 3
OBSERVER_PAGES = 4096

FAST_MIB = 1024
SLOW_MIB = 512
BOOT_SECONDS = 600.0
"""Limit on the boot time; under -icount an emulated CPU runs at a fraction of its usual speed."""

PROGRAM = "/root/costs"
MODULE = "/root/sentinel.ko"


def build(folder: Path) -> Path:
    """Compile the costs program with the guest's compiler; return its path."""
    source = "/root/sentineld/tests/bench/costs"
    in_root(f"make -s -C {source} OUT={BUILD_PLACE}/costs", {folder: BUILD_PLACE})
    return folder / "costs"


def run(guest: Guest, verb: str, rounds: int, pages: int) -> list[dict[str, Any]]:
    """Run the costs program; return the objects that it prints."""
    with phase(f"costs {verb}"):
        output = guest.run([PROGRAM, str(rounds), str(pages), verb], timeout=900).stdout
    return [json.loads(line) for line in output.splitlines()]


def faults(guest: Guest, verb: str) -> dict[str, Any]:
    """Run the costs program; return {operation: {"mean": [...], "median": [...]}}.

    Each list has one value per round: the mean or the median number of instructions per page,
    record or call.
    """
    lines = run(guest, verb, ROUNDS, PAGES)
    return {line["name"]: {key: line[key] for key in ("mean", "median")} for line in lines}


def with_session_elsewhere(guest: Guest) -> dict[str, Any]:
    """Count the instructions of a process's page faults while another process has a session of the
    module."""
    fifo = "/run/bench-hold"
    guest.run(f"mkfifo {fifo}")
    holder = guest.start(f"exec {PROGRAM} 1 {PAGES} hold 3<>{fifo} <&3")
    assert holder.stdout is not None
    if "holding" not in (line := holder.stdout.readline()):
        raise MachineError(f"the session did not start: {line}{holder.stdout.read()}")
    try:
        return faults(guest, "plain")
    finally:
        holder.send_remote("KILL")
        holder.wait(timeout=60)


def measure() -> dict[str, Any]:
    """Measure in a new guest; return the raw figures."""
    with (
        tempfile.TemporaryDirectory(prefix="sentineld-bench-") as folder,
        Guest(
            fast_mib=FAST_MIB, slow_mib=SLOW_MIB, cpus=1, icount=True, boot_seconds=BOOT_SECONDS
        ) as guest,
    ):
        guest.put(build(Path(folder)), PROGRAM)
        guest.put(build_module(REPOSITORY / "build" / "bench"), MODULE)
        found: dict[str, Any] = {
            "kernel_release": guest.run("uname -r").stdout.strip(),
            "pages": PAGES,
            "module_absent": faults(guest, "plain"),
        }
        guest.run(f"insmod {MODULE}")
        found["module_loaded"] = faults(guest, "plain")
        found["armed"] = faults(guest, "armed")
        found["module_idle"] = faults(guest, "plain")
        found["session_elsewhere"] = with_session_elsewhere(guest)
        found["observers"] = run(guest, "observers", OBSERVER_ROUNDS, OBSERVER_PAGES)
        guest.check_kernel_log()
        return found
