# SPDX-License-Identifier: Apache-2.0
"""A control segment with its ring, as the process writes it."""

from __future__ import annotations

import fcntl
import mmap
import os

import numpy as np

from sentineld.model import protocol
from sentineld.model.records import RECORD_DTYPE, Records

RECORDS = 64
BYTES = 4096 + RECORDS * RECORD_DTYPE.itemsize


class Writer:
    """A control segment as a shim creates it. words: header fields. The caller closes fd."""

    def __init__(self, seals: int = fcntl.F_SEAL_SHRINK, **words: int) -> None:
        self.fd = os.memfd_create("control", os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, max(BYTES, 8192))
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, seals)
        self.map = mmap.mmap(self.fd, max(BYTES, 8192))
        self.header = np.frombuffer(self.map, protocol.CONTROL_DTYPE, 1)
        self.ring = np.frombuffer(self.map, RECORD_DTYPE, RECORDS, 4096)
        fixed = {
            "magic": protocol.CONTROL_MAGIC,
            "version": protocol.SHIM_VERSION,
            "ring_offset": 4096,
            "ring_records": RECORDS,
            "heap_bytes": 1 << 32,
            **words,
        }
        for name, value in fixed.items():
            self.header[name] = value

    def write(self, count: int) -> None:
        """Append `count` empty records; the time_ns of each record is its sequence number."""
        rows = np.zeros(count, RECORD_DTYPE)
        rows["time_ns"] = int(self.header["ring_head"][0]) + np.arange(count)
        self.put(rows)

    def put(self, rows: Records) -> None:
        """Append records, even if they overwrite records that the daemon has not read."""
        head = int(self.header["ring_head"][0])
        for number, row in enumerate(rows, head):
            self.ring[number % RECORDS] = row
        self.header["ring_head"] = head + len(rows)
