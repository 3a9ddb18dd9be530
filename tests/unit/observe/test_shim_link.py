# SPDX-License-Identifier: Apache-2.0
"""The link to a shim: its messages are limited and may be malformed; its flag word is shared."""

from __future__ import annotations

import os
import random
import socket
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from sentineld.control.frames import FrameError, FrameSocket, Message
from sentineld.model import protocol
from sentineld.model.records import OP_ACCESS_DTYPE, TensorName
from sentineld.observe.shim_link import ShimLink
from tests.unit.segment import Writer

ROWS = np.array([(5, 4096, 100, True, False), (6, 8192, 50, False, True)], OP_ACCESS_DTYPE)


class Peer:
    """The shim's end of a link, after the hello."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self.shim = FrameSocket(ours)
        self._daemon = FrameSocket(theirs)
        event = os.eventfd(0)
        self.segment = Writer()
        self.shim.send({}, [self.segment.fd, event])
        os.close(event)
        self._daemon.receive()
        self.link = ShimLink(self._daemon, {"version": protocol.SHIM_VERSION})

    def say(self, data: bytes | None, message: Message) -> Message:
        fds = []
        if data is not None:
            fds.append(os.memfd_create("accesses"))
            os.write(fds[0], data)
        self.shim.send(message, fds)
        for fd in fds:
            os.close(fd)
        (received,) = self._daemon.receive()
        return received

    def close(self) -> None:
        self.link.close()
        self._daemon.close()
        self.shim.close()


@pytest.fixture
def peer() -> Iterator[Peer]:
    made = Peer()
    yield made
    made.close()


def test_rows_and_names(peer: Peer) -> None:
    names = [[4096, "parameter", "a.weight"], [8192, "optimizer", "a.weight exp_avg"]]
    accesses = peer.link.take_accesses(peer.say(ROWS.tobytes(), {"step": 7, "names": names}))
    assert accesses.step == 7
    assert np.array_equal(accesses.rows, ROWS)
    assert accesses.names == {
        4096: TensorName("parameter", "a.weight"),
        8192: TensorName("optimizer", "a.weight exp_avg"),
    }


@pytest.mark.parametrize(
    "names",
    [None, 3, {"a": 1}, [3], [[1, 2]], [["4096", "parameter", "a"]], [[[], "parameter", "a"]]],
)
def test_malformed_names_are_skipped(peer: Peer, names: object) -> None:
    accesses = peer.link.take_accesses(peer.say(ROWS.tobytes(), {"step": 7, "names": names}))
    assert accesses.names == {}
    assert len(accesses.rows) == 2


def test_long_names_are_truncated(peer: Peer) -> None:
    message = {"step": 7, "names": [[1, "x" * 9999, "y" * 9999]]}
    (named,) = peer.link.take_accesses(peer.say(b"", message)).names.values()
    assert len(named.role) == len(named.name) == 256


@pytest.mark.parametrize("step", [None, "7", 7.0, True])
def test_malformed_step_numbers_match_no_step(peer: Peer, step: object) -> None:
    assert peer.link.take_accesses(peer.say(ROWS.tobytes(), {"step": step})).step == -1


def test_an_incomplete_row_is_left_out(peer: Peer) -> None:
    assert len(peer.link.take_accesses(peer.say(ROWS.tobytes()[:-3], {"step": 7})).rows) == 1


def test_a_message_without_a_file(peer: Peer) -> None:
    with pytest.raises(FrameError):
        peer.link.take_accesses(peer.say(None, {"step": 7}))


def test_threads_that_set_different_flags_lose_none(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, delays = peer.link.segment.set_flags, random.Random(0)

    def write_late(flags: int) -> None:
        time.sleep(delays.uniform(0, 5e-4))  # so that a stale word could be written last
        write(flags)

    monkeypatch.setattr(peer.link.segment, "set_flags", write_late)
    wrong: list[int] = []

    def toggle(bit: int) -> None:
        for wanted in [bit, 0] * 20:
            peer.link.set_flags(on=wanted, off=bit)
            time.sleep(5e-4)  # until every write that was under way is done
            if int(peer.segment.header["flags"][0]) & bit != wanted:
                wrong.append(bit)

    threads = [threading.Thread(target=toggle, args=(1 << index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert int(peer.segment.header["flags"][0]) == 0
