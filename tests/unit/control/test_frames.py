# SPDX-License-Identifier: Apache-2.0
"""Frames survive any split of the stream; malformed input is rejected."""

from __future__ import annotations

import os
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentineld.control import frames
from sentineld.control.frames import FROM_SHIM, FrameBuffer, FrameError, FrameSocket, encode

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
