# SPDX-License-Identifier: Apache-2.0
"""The consumer of a BPF ring buffer, with a writer that lays out records as the kernel does."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentineld.model.kernel_events import FAULT_DTYPE
from sentineld.observe.ringbuf import BUSY, DISCARDED, HEADER_BYTES, take

RING_BYTES = 4096


@dataclass(frozen=True)
class Written:
    """One record, as a BPF program reserves it. take() skips it if its length is not
    FAULT_DTYPE's."""

    state: str  # committed, busy, discarded
    length_bytes: int


class Writer:
    """The kernel's side: appends records to a ring whose data is mapped twice in a row."""

    def __init__(self, position: int) -> None:
        self.data = np.full(RING_BYTES, 0xEE, dtype=np.uint8)
        self.start = self.position = position
        self.committed: list[tuple[int, bytes]] = []

    def append(self, record: Written, payload: bytes) -> bool:
        taken = (HEADER_BYTES + record.length_bytes + 7) & ~7
        if self.position + taken - self.start > RING_BYTES:
            return False
        flag = {"committed": 0, "busy": BUSY, "discarded": DISCARDED}[record.state]
        raw = np.zeros(taken, dtype=np.uint8)
        raw[:4].view("<u4")[0] = record.length_bytes | flag
        raw[HEADER_BYTES : HEADER_BYTES + record.length_bytes] = list(payload)
        places = (self.position + np.arange(taken)) % RING_BYTES
        self.data[places] = raw
        self.position += taken
        return True

    def seen(self) -> np.ndarray:
        return np.concatenate([self.data, self.data])


ours = st.just(FAULT_DTYPE.itemsize)
records = st.lists(
    st.tuples(
        st.builds(
            Written,
            state=st.sampled_from(["committed"] * 6 + ["discarded", "busy"]),
            length_bytes=st.one_of(ours, ours, ours, st.integers(0, 100)),
        ),
        st.binary(min_size=100, max_size=100),
    ),
    max_size=150,
)
positions = st.integers(0, 3 * RING_BYTES // 8).map(lambda words: words * 8)


@given(positions, records)
def test_takes_all_complete_records_up_to_the_first_busy_one(
    position: int, appended: list[tuple[Written, bytes]]
) -> None:
    writer = Writer(position)
    expected: list[bytes] = []
    foreign = 0
    reached = position
    blocked = False
    for record, payload in appended:
        if not writer.append(record, payload[: record.length_bytes]):
            break
        blocked = blocked or record.state == "busy"
        if blocked:
            continue
        reached = writer.position
        if record.state == "committed":
            if record.length_bytes == FAULT_DTYPE.itemsize:
                expected.append(payload[: record.length_bytes])
            else:
                foreign += 1

    batch = take(writer.seen(), position, writer.position, FAULT_DTYPE)

    assert batch.records.tobytes() == b"".join(expected)
    assert batch.position == reached
    assert batch.foreign == foreign


def test_continues_at_the_busy_record() -> None:
    writer = Writer(RING_BYTES - 64)
    for number, state in enumerate(["committed", "busy", "committed"]):
        writer.append(Written(state, FAULT_DTYPE.itemsize), bytes([number]) * FAULT_DTYPE.itemsize)
    first = take(writer.seen(), writer.start, writer.position, FAULT_DTYPE)
    assert first.records["pid"].tolist() == [0]

    writer.data[(first.position + 3) % RING_BYTES] &= 0x7F  # the writer commits
    second = take(writer.seen(), first.position, writer.position, FAULT_DTYPE)
    assert second.records["pid"].tolist() == [0x01010101, 0x02020202]
    assert second.position == writer.position


def test_records_are_copies() -> None:
    writer = Writer(0)
    writer.append(Written("committed", FAULT_DTYPE.itemsize), b"\x01" * FAULT_DTYPE.itemsize)
    seen = writer.seen()
    batch = take(seen, 0, writer.position, FAULT_DTYPE)
    seen[:] = 0
    assert batch.records["pid"].tolist() == [0x01010101]


def test_refuses_a_record_size_that_is_not_aligned() -> None:
    with pytest.raises(ValueError, match="multiple of 8"):
        take(np.zeros(2 * RING_BYTES, dtype=np.uint8), 0, 32, np.dtype([("x", "u1", 20)]))
