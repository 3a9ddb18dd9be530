# SPDX-License-Identifier: Apache-2.0
"""Reads records from a BPF_MAP_TYPE_RINGBUF map in batches.

A mapping of the ring consists of the consumer's position (one page, writable), the producer's
position (one page), and the data. The data is mapped twice in a row, so that a record that wraps
around is contiguous (kernel/bpf/ringbuf.c). Each record starts with an 8-byte header. The header
has the record's length, with the flags BUSY and DISCARDED in the two top bits, and a page offset
for the kernel's use. Records are aligned to 8 bytes.

Consecutive records of the expected length are copied as one numpy array, which is
about thirty times as fast as one callback per record.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

HEADER_BYTES = 8
BUSY = 1 << 31
DISCARDED = 1 << 30


@dataclass(frozen=True)
class Batch:
    """The records of one pass over a ring."""

    records: npt.NDArray[np.void]  # copies of the records of the expected length, in order
    position: int  # the consumer's new position, in bytes since the ring was created
    foreign: int  # number of records of another length, which were skipped


def take(data: npt.NDArray[np.uint8], consumer: int, producer: int, dtype: np.dtype[Any]) -> Batch:
    """Take the complete records between two positions.

    data: the ring's data mapped twice in a row (2 x a power of two bytes).
    consumer, producer: positions in bytes since the ring was created.

    Stops at the first busy record: its writer has not finished it yet.
    """
    mask = data.size // 2 - 1
    slot = np.dtype([("header", "<u4"), ("page", "<u4"), ("record", dtype)])
    if dtype.itemsize % 8:
        raise ValueError("the record size must be a multiple of 8 bytes")
    runs: list[npt.NDArray[Any]] = []
    foreign = 0
    while consumer < producer:
        offset = consumer & mask
        count = (producer - consumer) // slot.itemsize
        slots = np.frombuffer(data, dtype=slot, count=count, offset=offset)
        headers = slots["header"]
        ours = (headers & ~np.uint32(DISCARDED)) == dtype.itemsize
        run = count if ours.all() else int(ours.argmin())
        if run:
            kept = (headers[:run] & np.uint32(DISCARDED)) == 0
            runs.append(slots["record"][:run][kept])
            consumer += run * slot.itemsize
            continue
        header = int(data[offset : offset + 4].view("<u4")[0])
        if header & BUSY:
            break
        foreign += not header & DISCARDED
        consumer += (HEADER_BYTES + (header & ~DISCARDED) + 7) & ~7
    records = np.concatenate(runs) if runs else np.zeros(0, dtype=dtype)
    return Batch(records=records, position=consumer, foreign=foreign)


class RingBuffer:
    """A ring buffer map of fixed-size records, mapped into this process. Owns the fd."""

    def __init__(self, fd: int, capacity_bytes: int, dtype: np.dtype[Any]) -> None:
        self._fd = fd
        self._dtype = dtype
        page = mmap.PAGESIZE
        self._control = mmap.mmap(fd, page, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        self._mapping = mmap.mmap(
            fd, page + 2 * capacity_bytes, mmap.MAP_SHARED, mmap.PROT_READ, offset=page
        )
        self._consumer = np.frombuffer(self._control, dtype="<u8", count=1)
        self._producer = np.frombuffer(self._mapping, dtype="<u8", count=1)
        self._data = np.frombuffer(self._mapping, dtype=np.uint8, offset=page)
        self.foreign = 0

    def drain(self) -> npt.NDArray[np.void]:
        """Take all complete records, as a copy."""
        batch = take(self._data, int(self._consumer[0]), int(self._producer[0]), self._dtype)
        # After this store the kernel may overwrite the records.
        self._consumer[0] = batch.position
        self.foreign += batch.foreign
        return batch.records

    def close(self) -> None:
        """Unmap the ring and close its fd."""
        if self._fd < 0:
            return
        # A mapping that an array references cannot be closed.
        del self._consumer, self._producer, self._data
        self._control.close()
        self._mapping.close()
        os.close(self._fd)
        self._fd = -1
