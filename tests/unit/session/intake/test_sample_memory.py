# SPDX-License-Identifier: Apache-2.0
"""The limits on the memory of samples."""

from __future__ import annotations

import numpy as np

from sentineld.model.records import SAMPLE_DTYPE, Records
from sentineld.session.intake.sample_memory import SampleMemory

RECORD_BYTES = SAMPLE_DTYPE.itemsize
ONE, OTHER = 1000, 1001


def kept(memory: SampleMemory, uid: int, records: int) -> Records:
    made = np.zeros(records, SAMPLE_DTYPE)
    memory.keep(uid, made)
    return made


def test_a_user_s_samples_are_limited_until_they_are_freed() -> None:
    memory = SampleMemory(10 * RECORD_BYTES, 1 << 30)
    first = kept(memory, ONE, 6)
    second = kept(memory, ONE, 4)
    assert memory.fits(ONE)
    third = kept(memory, ONE, 1)
    assert not memory.fits(ONE)
    assert memory.fits(OTHER)
    part = first[:2]  # keeps the array's memory
    del first
    assert not memory.fits(ONE)
    del part
    assert memory.fits(ONE)
    assert len(second) + len(third) == 5


def test_the_samples_of_all_users_are_limited() -> None:
    memory = SampleMemory(10 * RECORD_BYTES, 15 * RECORD_BYTES)
    one, other = kept(memory, ONE, 8), kept(memory, OTHER, 7)
    assert memory.fits(ONE)
    assert memory.fits(OTHER)
    more = kept(memory, OTHER, 1)
    assert not memory.fits(OTHER)
    del more, one
    assert memory.fits(OTHER)
    assert len(other) == 7
