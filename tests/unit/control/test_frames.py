# SPDX-License-Identifier: Apache-2.0
"""Frames survive any split of the stream; malformed input is rejected."""

from __future__ import annotations

import os
import socket
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentineld.base.closing import closing
from sentineld.control import frames
from sentineld.control.frames import (
    FROM_SHIM,
    MESSAGES_MAX,
    FrameBuffer,
    FrameError,
    FrameSocket,
    encode,
)
from tests.unit.control.lingering import LINGER_S, lingering, send_away
from tests.unit.waiting import wait

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)
MESSAGES = st.lists(st.dictionaries(st.text(max_size=6), JSON, max_size=4), max_size=5)


@given(MESSAGES, st.lists(st.integers(1, 40), min_size=1))
def test_messages_survive_any_split_of_the_stream(
    messages: list[dict[str, object]], cuts: list[int]
) -> None:
    stream = b"".join(encode(message) for message in messages)
    buffer, received, turn = FrameBuffer(FROM_SHIM), [], 0
    while stream:
        size = cuts[turn % len(cuts)]
        turn += 1
        received += buffer.feed(stream[:size])
        stream = stream[size:]
    assert received == messages


@pytest.mark.parametrize(
    "data",
    [
        (FROM_SHIM.frame_bytes + 1).to_bytes(4, "little"),
        b"\x02\x00\x00\x00[]",
        b"\x03\x00\x00\x00{]}",
        b"\x02\x00\x00\x00\xff\xfe",
    ],
)
def test_malformed_frames_are_rejected(data: bytes) -> None:
    with pytest.raises(FrameError):
        FrameBuffer(FROM_SHIM).feed(data)


@given(st.binary(max_size=200))
def test_random_bytes_raise_only_frame_errors(data: bytes) -> None:
    try:
        for message in FrameBuffer(FROM_SHIM).feed(data):
            assert isinstance(message, dict)
    except FrameError:
        pass


def test_descriptors_arrive_with_their_frame() -> None:
    ours, theirs = socket.socketpair()
    sender, receiver = FrameSocket(ours), FrameSocket(theirs)
    read_end, write_end = os.pipe()
    sender.send({"type": "hello"}, [write_end])
    os.close(write_end)
    assert receiver.receive() == [{"type": "hello"}]
    (got,) = receiver.take_fds(1)
    os.write(got, b"x")
    os.close(got)
    assert os.read(read_end, 2) == b"x"
    os.close(read_end)
    with pytest.raises(FrameError):
        receiver.take_fds(1)
    sender.close()
    with pytest.raises(EOFError):
        receiver.receive()
    receiver.close()


def test_a_peer_that_keeps_writing_is_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "READS_MAX", 1)
    ours, theirs = socket.socketpair()
    sender, receiver = FrameSocket(ours), FrameSocket(theirs)
    for number in range(10):
        sender.send({"number": number, "text": "x" * 10_000})
    parts = []
    while sum(map(len, parts)) < 10:
        parts.append(receiver.receive())
    assert len(parts) > 1
    assert [message["number"] for part in parts for message in part] == list(range(10))
    sender.close()
    receiver.close()


def fill(sender: FrameSocket) -> None:
    for _ in range(100_000):
        sender.send({"text": "x" * 1000})


def test_sending_to_a_peer_that_does_not_read_fails() -> None:
    ours, theirs = socket.socketpair()
    sender = FrameSocket(ours)
    with pytest.raises(EOFError):
        fill(sender)
    sender.close()
    theirs.close()


def test_many_small_messages_are_received_in_parts() -> None:
    ours, theirs = socket.socketpair()
    sender, receiver = FrameSocket(ours), FrameSocket(theirs)
    for number in range(3 * MESSAGES_MAX):
        sender.send({"number": number})
    received = receiver.receive()
    assert len(received) == MESSAGES_MAX
    # The other messages have already been read from the socket, so the socket is not readable and
    # would not wake an event loop. has_message() reports these messages.
    while receiver.has_message():
        received += receiver.receive()
    assert [message["number"] for message in received] == list(range(3 * MESSAGES_MAX))
    sender.close()
    receiver.close()


def test_reading_stops_when_the_frame_is_not_admitted() -> None:
    ours, theirs = socket.socketpair()
    sender, receiver = FrameSocket(ours), FrameSocket(theirs)
    asked: list[int] = []

    def may_read(frame_bytes: int) -> bool:
        asked.append(frame_bytes)
        return frame_bytes <= 1000

    receiver.may_read = may_read
    large = encode({"text": "x" * 100_000})
    theirs_sent = ours.send(encode({"a": 1}) + large)
    assert theirs_sent > 1000
    assert receiver.receive() == [{"a": 1}]
    assert asked == [0, len(large)]
    assert receiver.receive() == []
    sender.close()
    receiver.close()


def test_an_estimate_of_a_messages_memory_exceeds_what_it_takes() -> None:
    def takes(message: dict[str, object]) -> int:
        ((_, estimate),) = FrameBuffer(FROM_SHIM).feed_sized(encode(message))
        return estimate

    assert takes({"names": [[]] * 10_000}) > 10_000 * 64
    assert takes({"names": list(range(1000, 11_000))}) > 10_000 * 40
    assert takes({"text": "x" * 10_000 + "\U0001f600"}) > 4 * 10_000


@pytest.mark.parametrize("flags", [0, socket.MSG_OOB])
@pytest.mark.parametrize("before", [0, 8, 200])
def test_received_descriptors_whose_close_blocks_do_not_block(flags: int, before: int) -> None:
    """The descriptor whose close() blocks comes with ordinary or out-of-band data. It comes alone,
    or after 8 or 200 descriptors whose close() does not block."""
    ours, theirs = socket.socketpair()
    receiver = FrameSocket(theirs)
    null = os.open(os.devnull, os.O_RDONLY)
    with lingering() as stuck:
        send_away(ours, b"\x10", [null] * before + [stuck.fileno()], flags)
        ours.send(b"\x00")
        stuck.close()
        begin_s = time.monotonic()
        try:
            receiver.receive()
        except FrameError:
            assert before >= frames.FDS_MAX
        receiver.close()
        assert time.monotonic() - begin_s < LINGER_S / 2
    wait(lambda: not closing(os.getuid()))
    os.close(null)
    ours.close()
