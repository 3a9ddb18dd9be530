# SPDX-License-Identifier: Apache-2.0
"""Maps the profiler's clock to the clock of the records in the shim's ring.

torch.profiler stamps events with wall time derived from the cycle counter; the shim stamps the
ring's records with CLOCK_MONOTONIC. An allocation or free of 4 KiB or more that both the profiler
and the ring have recorded gives one pair of times, called a pin. But if the profiler missed an
allocation at an address, no allocation at this address gives a pin; likewise for frees. Times
between two pins are interpolated and stay between these pins, so the mapping never moves an access
across a birth or death that is a pin.
"""

from __future__ import annotations

import time
from collections import defaultdict

import numpy as np
import numpy.typing as npt

from sentineld.model import protocol
from sentineld.shim.native import Native

Memory = list[tuple[int, int, int]]
"""Rows (profiler time in ns, address, signed bytes: negative for a free)."""


def _control(native: Native) -> np.void:
    words = native.control_bytes(0, protocol.CONTROL_DTYPE.itemsize)
    control: np.void = np.frombuffer(words, dtype=protocol.CONTROL_DTYPE)[0]
    return control


def ring_head(native: Native) -> int:
    """Return the number of records written to the ring since the shim started."""
    return int(_control(native)["ring_head"])


def ring_records(native: Native, first: int) -> npt.NDArray[np.void]:
    """Copy the ring's records from number `first` on; empty if some of them were overwritten."""
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
    """Return (start, bytes) of the used part of the heap and of the live arena."""
    control = _control(native)
    ranges = [(int(control["heap_base"]), int(control["heap_used"]))]
    if control["arena_base"]:
        ranges.append((int(control["arena_base"]), int(control["arena_bytes"])))
    return ranges


class TimeMap:
    """Maps the profiler's clock to CLOCK_MONOTONIC for one step."""

    def __init__(self, records: npt.NDArray[np.void], memory: Memory) -> None:
        """Find the pins: match the ring's allocations and frees with the profiler's by address.

        records: the step's ring records; may be empty.
        memory: the profiler's allocations and frees.
        """
        births = (records["event"] == protocol.Event.ALLOC) & (
            records["detail"] != protocol.Alloc.LIVE
        )
        deaths = records["event"] == protocol.Event.FREE
        kept = records[births | deaths]
        ring: dict[tuple[int, bool], list[int]] = defaultdict(list)
        for index, record in enumerate(kept):
            birth = bool(record["event"] == protocol.Event.ALLOC)
            ring[int(record["address"]), birth].append(index)
        reported: dict[tuple[int, bool], list[int]] = defaultdict(list)
        for when, address, size in sorted(memory):
            if abs(size) >= protocol.TENSOR_BYTES_MIN:
                reported[address, size > 0].append(when)
        pins: list[tuple[int, int]] = []
        seen = np.zeros(len(kept), dtype=np.bool_)
        for key, indices in ring.items():
            times = reported.get(key, [])
            if len(times) == len(indices):
                pins += zip(times, kept["time_ns"][indices].tolist(), strict=True)
                seen[indices] = True
            elif times:
                # The profiler missed some of the allocations (or frees) at this address, so none of
                # them gives a pin.
                seen[indices] = True
        unreported = ~seen & (kept["event"] == protocol.Event.ALLOC)
        self._unreported: npt.NDArray[np.void] = kept[unreported]
        self._set_pins(pins)

    def _set_pins(self, pins: list[tuple[int, int]]) -> None:
        if not pins:
            pins = [(time.time_ns(), time.monotonic_ns())]
        table = np.array(sorted(pins), dtype=np.int64)
        # Differences from the first pin are small enough to be exact as float64.
        self._base = table[0].copy()
        self._profiler = (table[:, 0] - self._base[0]).astype(np.float64)
        self._monotonic = np.maximum.accumulate(table[:, 1] - self._base[1]).astype(np.float64)

    def monotonic(self, times: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
        """Convert the profiler's times to CLOCK_MONOTONIC, both in ns."""
        offsets = (times - self._base[0]).astype(np.float64)
        mapped = np.interp(offsets, self._profiler, self._monotonic)
        before, after = offsets < self._profiler[0], offsets > self._profiler[-1]
        mapped[before] = offsets[before] - self._profiler[0] + self._monotonic[0]
        mapped[after] = offsets[after] - self._profiler[-1] + self._monotonic[-1]
        result: npt.NDArray[np.uint64] = (mapped + float(self._base[1])).astype(np.uint64)
        return result

    def unreported_allocations(self) -> npt.NDArray[np.void]:
        """Return the ring records of allocations at addresses for which the profiler reported no
        allocation."""
        return self._unreported
