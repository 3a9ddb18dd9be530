# SPDX-License-Identifier: Apache-2.0
"""The profiler's clock against the ring's: the same births and deaths, seen by both.

torch.profiler stamps events with wall time made from the cycle counter, the
ring with CLOCK_MONOTONIC. Each allocation and free >= 4 KiB that both saw pins
the one clock to the other; what lies between two pins stays between them, so
an access can never slip over its tensor's birth or death.
"""

from __future__ import annotations

import time
from collections import defaultdict

import numpy as np
import numpy.typing as npt

from sentineld.model import protocol
from sentineld.shim.native import Native

Memory = list[tuple[int, int, int]]
"""(profiler time in ns, address, bytes; negative: freed)."""


def _control(native: Native) -> np.void:
    words = native.control_bytes(0, protocol.CONTROL_DTYPE.itemsize)
    control: np.void = np.frombuffer(words, dtype=protocol.CONTROL_DTYPE)[0]
    return control


def ring_head(native: Native) -> int:
    """Records written so far."""
    return int(_control(native)["ring_head"])


def ring_records(native: Native, first: int) -> npt.NDArray[np.void]:
    """The ring's records from number `first` on; empty if they have been overwritten."""
    control = _control(native)
    capacity, offset = int(control["ring_records"]), int(control["ring_offset"])
    size = protocol.RECORD_DTYPE.itemsize
    count = int(control["ring_head"]) - first
    if not 0 < count <= capacity:
        return np.zeros(0, dtype=protocol.RECORD_DTYPE)
    begin = first % capacity
    straight = min(count, capacity - begin)
    data = native.control_bytes(offset + begin * size, straight * size)
    data += native.control_bytes(offset, (count - straight) * size)
    return np.frombuffer(data, dtype=protocol.RECORD_DTYPE)


def tensor_ranges(native: Native) -> list[tuple[int, int]]:
    """(start, bytes) of the heap and the live arena."""
    control = _control(native)
    ranges = [(int(control["heap_base"]), int(control["heap_used"]))]
    if control["arena_base"]:
        ranges.append((int(control["arena_base"]), int(control["arena_bytes"])))
    return ranges


class TimeMap:
    """From the profiler's clock to CLOCK_MONOTONIC, for one step.

    records: the step's ring records, may be empty; memory: the profiler's allocations and frees.
    """

    def __init__(self, records: npt.NDArray[np.void], memory: Memory) -> None:
        births = (records["event"] == protocol.Event.ALLOC) & (
            records["detail"] != protocol.Alloc.LIVE
        )
        deaths = records["event"] == protocol.Event.FREE
        kept = records[births | deaths]
        ring: dict[tuple[int, bool], list[int]] = defaultdict(list)
        for index, record in enumerate(kept):
            birth = bool(record["event"] == protocol.Event.ALLOC)
            ring[int(record["address"]), birth].append(index)
        told: dict[tuple[int, bool], list[int]] = defaultdict(list)
        for when, address, size in sorted(memory):
            if abs(size) >= protocol.TENSOR_BYTES_MIN:
                told[address, size > 0].append(when)
        pins: list[tuple[int, int]] = []
        seen = np.zeros(len(kept), dtype=np.bool_)
        for key, indices in ring.items():
            times = told.get(key, [])
            if len(times) == len(indices):
                pins += zip(times, kept["time_ns"][indices].tolist(), strict=True)
                seen[indices] = True
            elif times:
                seen[indices] = True  # told, though not which is which
        untold = ~seen & (kept["event"] == protocol.Event.ALLOC)
        self._untold: npt.NDArray[np.void] = kept[untold]
        self._set_pins(pins)

    def _set_pins(self, pins: list[tuple[int, int]]) -> None:
        if not pins:
            pins = [(time.time_ns(), time.monotonic_ns())]
        table = np.array(sorted(pins), dtype=np.int64)
        # Differences to the first pin are small enough for exact floating point.
        self._base = table[0].copy()
        self._profiler = (table[:, 0] - self._base[0]).astype(np.float64)
        self._monotonic = np.maximum.accumulate(table[:, 1] - self._base[1]).astype(np.float64)

    def monotonic(self, times: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
        """CLOCK_MONOTONIC in ns for the profiler's times."""
        offsets = (times - self._base[0]).astype(np.float64)
        mapped = np.interp(offsets, self._profiler, self._monotonic)
        before, after = offsets < self._profiler[0], offsets > self._profiler[-1]
        mapped[before] = offsets[before] - self._profiler[0] + self._monotonic[0]
        mapped[after] = offsets[after] - self._profiler[-1] + self._monotonic[-1]
        result: npt.NDArray[np.uint64] = (mapped + float(self._base[1])).astype(np.uint64)
        return result

    def untold_allocations(self) -> npt.NDArray[np.void]:
        """Ring records of allocations that the profiler did not see."""
        return self._untold
