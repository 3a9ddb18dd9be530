# SPDX-License-Identifier: Apache-2.0
"""The host's side of the QEMU plugin that counts cache misses by node and keeps the modelled clock.

The plugin (tests/demo/plugin/counter.c) and this process share one file, whose
layout is `struct shared` of counter.c. The file also backs the memory of a device in the guest,
from which the workload reads the clock (tests/demo/train.py).
"""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from tests.demo.prices import Prices

NODES_MAX = 4
RANGES_MAX = 16
CPUS_MAX = 8
GRAINS = 64
GRAIN_BYTES = 256 << 20
PLACES = ("tensors", "user_other", "kernel")

FILE_BYTES = 64 << 10
"""Size of the shared file, a power of two because it is a device's memory."""

SWITCH_SECONDS = 60.0
"""Time within which the plugin must begin or end counting after a change of `wanted`. The plugin
usually needs much less time, because each CPU reads `wanted` at each kernel entry, many times a
second."""


class Range(ctypes.Structure):
    """struct range of counter.c: addresses from start up to, but not including, end."""

    _fields_ = [("start", ctypes.c_uint64), ("end", ctypes.c_uint64)]


class Counts(ctypes.Structure):
    """struct counts of counter.c: the counts of one CPU."""

    _fields_ = [
        ("accesses", ctypes.c_uint64 * len(PLACES)),
        ("misses", ctypes.c_uint64 * NODES_MAX * len(PLACES)),
        ("elsewhere", ctypes.c_uint64),
        ("instructions", ctypes.c_uint64),
        ("grains", ctypes.c_uint64 * GRAINS),
    ]


class PriceList(ctypes.Structure):
    """struct prices of counter.c."""

    _fields_ = [
        ("instruction_ps", ctypes.c_uint64),
        ("load_ps", ctypes.c_uint64 * NODES_MAX),
        ("store_ps", ctypes.c_uint64 * NODES_MAX),
    ]


class Shared(ctypes.Structure):
    """struct shared of counter.c."""

    _fields_ = [
        ("now_ps", ctypes.c_uint64),
        ("idle_ps", ctypes.c_uint64),
        ("prices", PriceList),
        ("wanted", ctypes.c_uint32),
        ("active", ctypes.c_uint32),
        ("node_count", ctypes.c_uint32),
        ("range_count", ctypes.c_uint32),
        ("nodes", Range * NODES_MAX),
        ("tensors", Range * RANGES_MAX),
        ("cpus", Counts * CPUS_MAX),
    ]


@dataclass(frozen=True)
class Count:
    """Cache misses and instructions of all CPUs, and the time that they took."""

    misses: dict[str, list[int]]  # place (one of PLACES) -> misses by node
    elsewhere: int  # misses outside the nodes: ROM, firmware, memory of devices
    grains: dict[int, int]  # reported address // GRAIN_BYTES -> misses; see counter.c
    instructions: tuple[int, ...] = ()  # by CPU, without string operations
    seconds: float = 0.0  # modelled
    idle_seconds: float = 0.0  # the part of `seconds` in which all CPUs were halted

    def fast_share(self, place: str) -> float | None:
        """Share of a place's misses that node 0 served; None if there are no misses."""
        total = sum(self.misses[place])
        return self.misses[place][0] / total if total else None

    @property
    def machine_fast_share(self) -> float | None:
        """Share of all nodes' misses that node 0 served; None if there are no misses."""
        total = sum(map(sum, self.misses.values()))
        return sum(nodes[0] for nodes in self.misses.values()) / total if total else None

    @property
    def tensor_part(self) -> float | None:
        """Share of all nodes' misses that are accesses to tensors; None if there are no misses."""
        total = sum(map(sum, self.misses.values()))
        return sum(self.misses["tensors"]) / total if total else None


class Counter:
    """The plugin's switch and counters. A Counter must be created before QEMU starts."""

    def __init__(self, path: Path, nodes: list[tuple[int, int]], prices: Prices) -> None:
        """nodes: the addresses (start, end) of each node, as the plugin interface reports them."""
        path.write_bytes(bytes(FILE_BYTES))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self._shared = Shared.from_buffer(self._map)
        self._shared.node_count = len(nodes)
        for index, (start, end) in enumerate(nodes):
            self._shared.nodes[index] = Range(start, end)
        self._shared.prices.instruction_ps = prices.instruction_ps
        for index, (load_ps, store_ps) in enumerate(
            zip(prices.load_ps, prices.store_ps, strict=True)
        ):
            self._shared.prices.load_ps[index] = load_ps
            self._shared.prices.store_ps[index] = store_ps
        self._started_ps = (0, 0)

    def start(self, tensors: list[tuple[int, int]]) -> None:
        """Count from zero. tensors: the virtual addresses (start, end) of tensor memory."""
        if len(tensors) > RANGES_MAX:
            raise ValueError(f"{len(tensors)} tensor ranges; the plugin takes at most {RANGES_MAX}")
        for index, (begin, end) in enumerate(tensors):
            self._shared.tensors[index] = Range(begin, end)
        self._shared.range_count = len(tensors)
        for cpu in range(CPUS_MAX):
            self._shared.cpus[cpu] = Counts()
        self._switch(1)
        self._started_ps = self._shared.now_ps, self._shared.idle_ps

    def stop(self) -> Count:
        """Stop counting; returns the counts since start()."""
        self._switch(0)
        misses = {place: [0] * self._shared.node_count for place in PLACES}
        grains: dict[int, int] = {}
        elsewhere = 0
        for cpu in self._shared.cpus:
            elsewhere += cpu.elsewhere
            for place, row in zip(PLACES, cpu.misses, strict=True):
                for node in range(self._shared.node_count):
                    misses[place][node] += row[node]
            for grain, count in enumerate(cpu.grains):
                if count:
                    grains[grain] = grains.get(grain, 0) + count
        now_ps, idle_ps = self._started_ps
        return Count(
            misses,
            elsewhere,
            grains,
            tuple(cpu.instructions for cpu in self._shared.cpus if cpu.instructions),
            (self._shared.now_ps - now_ps) / 1e12,
            (self._shared.idle_ps - idle_ps) / 1e12,
        )

    def _switch(self, on: int) -> None:
        self._shared.wanted = on
        deadline = time.monotonic() + SWITCH_SECONDS
        while self._shared.active != on:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the plugin did not react within {SWITCH_SECONDS:.0f} s")
            time.sleep(0.005)


def build(output: Path) -> Path:
    """Compile the plugin to OUTPUT and return its path."""
    output.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(__file__).parent / "plugin"
    subprocess.run(
        ["make", "-s", "-C", str(folder), f"OUT={output.resolve()}"],
        check=True,
        env={**os.environ, "MAKEFLAGS": ""},
    )
    return output
