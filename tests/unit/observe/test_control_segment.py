# SPDX-License-Identifier: Apache-2.0
"""The control segment is untrusted: any content is either refused or read within bounds."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentineld.base.errors import SentinelError
from sentineld.model import protocol
from sentineld.observe.control_segment import ControlSegment
from tests.unit.segment import RECORDS, Writer


@pytest.fixture
def writer() -> Iterator[Writer]:
    made = Writer()
    yield made
    os.close(made.fd)


@pytest.mark.parametrize(
    "words",
    [
        {"magic": 1},
        {"version": 99},
        {"ring_records": 0},
        {"ring_records": 63},
        {"ring_records": 1 << 40},
        {"ring_offset": 0},
        {"ring_offset": 1 << 62},
        {"ring_offset": 4100},
    ],
)
def test_a_corrupt_segment_is_refused(words: dict[str, int]) -> None:
    lying = Writer(**words)
    with pytest.raises(SentinelError) as caught:
        ControlSegment(lying.fd)
    assert caught.value.code == "protocol-mismatch"
    os.close(lying.fd)


def test_a_segment_that_can_shrink_is_refused() -> None:
    shrinking = Writer(seals=fcntl.F_SEAL_GROW)
    with pytest.raises(SentinelError, match="shrink"):
        ControlSegment(shrinking.fd)
    os.close(shrinking.fd)


def test_a_position_that_can_no_longer_be_reached_is_not_reached(writer: Writer) -> None:
    """A process in the last possible step makes the daemon ask for a position beyond all others."""
    segment = ControlSegment(writer.fd)
    writer.header["position"] = 2**64 - 1
    assert segment.set_wake_position(2**64 - 1)
    assert not segment.set_wake_position(2**64)
    assert writer.header["wake_position"][0] == 2**64 - 1


@given(st.lists(st.integers(0, RECORDS), max_size=12))
def test_every_record_is_read_once_and_in_order(batches: list[int]) -> None:
    made = Writer()
    segment = ControlSegment(made.fd)
    came: list[int] = []
    for count in batches:
        made.write(count)
        came += segment.drain()["time_ns"].tolist()
        assert int(made.header["ring_tail"][0]) == len(came)
    assert came == list(range(sum(batches)))
    os.close(made.fd)


@given(st.integers(0, 2**64 - 1))
def test_any_head_yields_at_most_a_full_ring(head: int) -> None:
    made = Writer()
    segment = ControlSegment(made.fd)
    made.header["ring_head"] = head
    assert len(segment.drain()) <= RECORDS
    assert len(segment.drain()) == 0
    os.close(made.fd)


def test_words_are_read_and_written_at_the_shim_s_offsets(writer: Writer) -> None:
    segment = ControlSegment(writer.fd)
    writer.header["position"] = (7 << 32) | 3
    writer.header["mode"] = protocol.Mode.REPLAY
    assert segment.position() == (7 << 32) | 3
    assert segment.words().mode == protocol.Mode.REPLAY
    segment.set_flags(protocol.Flag.RECORD | protocol.Flag.EPOCHS)
    segment.set_moves_done(5)
    segment.set_heartbeat(9)
    segment.set_barrier_timeout(11)
    words = ("flags", "moves_done", "heartbeat", "barrier_timeout_ns")
    assert [int(writer.header[word][0]) for word in words] == [3, 5, 9, 11]


def test_the_barriers_of_all_steps_are_opened(writer: Writer) -> None:
    ControlSegment(writer.fd).open_barriers()
    assert int(writer.header["moves_done"][0]) == (1 << 64) - 1
