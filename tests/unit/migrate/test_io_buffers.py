# SPDX-License-Identifier: Apache-2.0
"""Buffers for direct I/O are distinct, writable and aligned."""

from __future__ import annotations

import numpy as np

from sentineld.migrate.io_buffers import HUGE_PAGE_BYTES, io_buffers

MIB = 1 << 20


def test_buffers_are_distinct_and_begin_at_a_huge_page() -> None:
    buffers = io_buffers(3, MIB)
    for number, buffer in enumerate(buffers):
        buffer[:] = bytes([number + 1]) * MIB
    assert [bytes({*buffer}) for buffer in buffers] == [b"\1", b"\2", b"\3"]
    addresses = [np.frombuffer(buffer, np.uint8).ctypes.data for buffer in buffers]
    assert addresses[0] % HUGE_PAGE_BYTES == 0
    assert np.diff(addresses).tolist() == [MIB, MIB]


def test_a_small_buffer_has_a_huge_page_of_its_own() -> None:
    (buffer,) = io_buffers(1, MIB // 8)
    assert len(buffer) == MIB // 8
    assert np.frombuffer(buffer, np.uint8).ctypes.data % HUGE_PAGE_BYTES == 0
