# SPDX-License-Identifier: Apache-2.0
"""The program of hot_cold.c, and a daemon that keeps the program within a budget by swapping."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from sentineld.observe.writewatch import read_pagemap
from tests.integration.test_daemon import PATIENCE_S, Daemon
from tests.swap_area import swap_area

MIB = 1 << 20
SWAP_BYTES = 256 * MIB
TOTAL_MIB, HOT_MIB = 96, 12
POLL_S = 0.2
"""Interval at which tests ask the daemon. If tests asked more often, the daemon would answer late,
because it limits the time that one user's messages may take."""


def build(folder: Path) -> Path:
    """Build the program in a folder."""
    path = folder / "hot_cold"
    source = Path(__file__).parent / "hot_cold.c"
    flags = "-std=gnu11 -O2 -Wall -Wextra -Werror".split()
    subprocess.run([os.environ.get("CC", "cc"), *flags, "-o", path, source], check=True)
    return path


@contextmanager
def daemon_with_swap(
    kind: str, folder: Path, tiers: str = "swap", config: str = ""
) -> Iterator[Daemon]:
    """A daemon on a machine with swap; see swap_area(). config: see Daemon."""
    config = f"scan_cpu_share = 0.2\n{config}"
    with (
        swap_area(kind, folder, SWAP_BYTES),
        Daemon(folder, "--tiers", tiers, config=config) as started,
    ):
        yield started


class Program:
    """A running hot_cold."""

    def __init__(
        self,
        path: Path,
        total_mib: int = TOTAL_MIB,
        hot_mib: int = HOT_MIB,
        prefix: Sequence[str] = (),
    ) -> None:
        """prefix: a command that execs the program."""
        self.process = subprocess.Popen(
            [*prefix, path, str(total_mib), str(hot_mib)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.address = int(self.process.stdout.readline(), 16)

    @property
    def pid(self) -> str:
        return str(self.process.pid)

    def tell(self, command: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def execute_again(self) -> None:
        """Have the process execute its program again, which fills its memory as before."""
        self.address = int(self.tell("exec"), 16)

    def resident_share(self, start_mib: int, size_mib: int) -> float:
        """The fraction of resident pages in the `size_mib` MiB that begin at offset `start_mib`."""
        fd = os.open(f"/proc/{self.pid}/pagemap", os.O_RDONLY | os.O_CLOEXEC)
        try:
            entries = read_pagemap(fd, self.address + start_mib * MIB, size_mib * MIB)
        finally:
            os.close(fd)
        return float(np.mean(entries >> np.uint64(63)))

    def resident_bytes(self) -> int:
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.partition("RssAnon:")[2].split()[0]) << 10

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


def wait(condition: Callable[[], object], what: str) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, what
        time.sleep(POLL_S)
