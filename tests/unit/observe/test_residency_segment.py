# SPDX-License-Identifier: Apache-2.0
"""The residency segment is untrusted: any content is either refused or read within bounds."""

from __future__ import annotations

import fcntl
import os

import numpy as np
import pytest

from sentineld.base.errors import SentinelError
from sentineld.model import protocol
from sentineld.model.plan import Space
from sentineld.observe.residency_segment import ResidencySegment

BYTES = 8192


def segment(seals: int = fcntl.F_SEAL_SHRINK, size: int = BYTES, **words: int) -> int:
    fd = os.memfd_create("residency", os.MFD_ALLOW_SEALING)
    header = np.zeros(1, protocol.RESIDENCY_DTYPE)
    fixed = {
        "magic": protocol.RESIDENCY_MAGIC,
        "version": protocol.SHIM_VERSION,
        "page_bytes": 4096,
        "layout_id": 7,
        "arena_offset": 4096,
        "arena_pages": 5,
        "heap_offset": 4104,
        "heap_pages": BYTES - 4104,
        "owed_ns": 3000,
        "paid_ns": 2000,
        **words,
    }
    for name, value in fixed.items():
        header[name] = value
    os.write(fd, header.tobytes())
    os.pwrite(fd, bytes([1, 2, 0, 0, 2]), 4096)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def opened(fd: int) -> ResidencySegment:
    try:
        return ResidencySegment(fd)
    finally:
        os.close(fd)


def test_reading_and_writing_a_segment() -> None:
    found = opened(segment())
    assert found.maps[Space.ARENA].tolist() == [1, 2, 0, 0, 2]
    assert len(found.maps[Space.HEAP]) == BYTES - 4104
    assert (found.layout_id, found.page_bytes) == (7, 4096)
    assert (found.owed_ns, found.paid_ns) == (3000, 2000)
    found.maps[Space.HEAP][-1] = 2  # the daemon's moves write to the map, too
    found.moved(3)
    found.moved(-5)
    assert found._header["moved_fast"][0] == -2
    found.flying(7)
    assert found._header["in_flight_fast"][0] == 7
    assert found.fast_room() is None
    found._header["fast_limit"], found._header["fast_own"] = 12, 6
    assert found.fast_room() == 12 - (6 - 2 + 7)


@pytest.mark.parametrize(
    "words",
    [
        {"magic": 1},
        {"version": 99},
        {"page_bytes": 0},
        {"page_bytes": 5000},
        {"arena_pages": BYTES},
        {"arena_offset": 1 << 63},
        {"heap_offset": BYTES + 1, "heap_pages": 0},
        {"heap_pages": (1 << 64) - 1},
    ],
)
def test_a_corrupt_segment_is_refused(words: dict[str, int]) -> None:
    with pytest.raises(SentinelError) as caught:
        opened(segment(**words))
    assert caught.value.code == "protocol-mismatch"


def test_a_segment_that_can_shrink_or_is_too_short_is_refused() -> None:
    with pytest.raises(SentinelError, match="shrink"):
        opened(segment(seals=fcntl.F_SEAL_GROW))
    with pytest.raises(SentinelError, match="64 bytes"):
        opened(segment(size=64))
