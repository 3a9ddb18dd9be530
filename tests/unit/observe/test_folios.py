# SPDX-License-Identifier: Apache-2.0
"""The first frames of folios, with a file of flags; test_accessed_frames.py has real huge pages."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

from sentineld.observe.folios import first_frames

HEAD, TAIL, LRU = 1 << 15, 1 << 16, 1 << 5


def test_the_first_frame_of_each_folio(tmp_path: Path) -> None:
    file = tmp_path / "kpageflags"
    # Folios of 1, 1, 2, 4 and 8 pages.
    flags = [LRU, LRU]
    for size in (2, 4, 8):
        flags += [LRU | HEAD] + [TAIL] * (size - 1)
    file.write_bytes(struct.pack(f"{len(flags)}Q", *flags))
    found = first_frames(np.arange(18), file)
    assert found.tolist() == [0, 1, 2, 2, 4, 4, 4, 4, *[8] * 8, 16, 17]


def test_without_flags_each_frame_is_a_folio(tmp_path: Path) -> None:
    frames = np.array([3, 4])
    assert first_frames(frames, tmp_path / "none").tolist() == [3, 4]
