# SPDX-License-Identifier: Apache-2.0
"""The link to a shim: messages are limited and may be malformed; threads share the flag word."""

from __future__ import annotations

import gc
import os
import random
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from sentineld.control.frames import FrameError, FrameSocket, Message
from sentineld.model import protocol
from sentineld.model.records import OP_ACCESS_DTYPE, TensorName
from sentineld.observe.shim_link import OP_ACCESSES_MAX, ShimLink
from tests.unit.segment import Writer
from tests.unit.waiting import PATIENCE_S

ROWS = np.array([(5, 4096, 100, True, False), (6, 8192, 50, False, True)], OP_ACCESS_DTYPE)


class Peer:
    """The shim's end of a link, after the hello."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self.shim = FrameSocket(ours)
        self._daemon = FrameSocket(theirs)
        self.event_fd = os.eventfd(0)
        self.segment = Writer()
        self.shim.send({}, [self.segment.fd, self.event_fd])
        self._daemon.receive()
        self.link = ShimLink(self._daemon, {"version": protocol.SHIM_VERSION})

    def say(self, data: bytes | None, message: Message) -> Message:
        if data is None:
            return self.pass_on(None, message)
        fd = os.memfd_create("accesses")
        os.write(fd, data)
        received = self.pass_on(fd, message)
        os.close(fd)
        return received

    def pass_on(self, fd: int | None, message: Message) -> Message:
        self.shim.send(message, [] if fd is None else [fd])
        (received,) = self._daemon.receive()
        return received

    def close(self) -> None:
        self.link.close()
        self.hang_up()

    def hang_up(self) -> None:
        self._daemon.close()
        self.shim.close()
        os.close(self.event_fd)


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


@pytest.mark.parametrize("kind", ["file", "socket"])
def test_only_a_memfd_is_read(peer: Peer, tmp_path: Path, kind: str) -> None:
    (tmp_path / "rows").write_bytes(ROWS.tobytes())
    end, other = socket.socketpair()
    fd = os.open(tmp_path / "rows", os.O_RDONLY) if kind == "file" else end.fileno()
    with pytest.raises(FrameError, match="not a memfd"):
        peer.link.take_accesses(peer.pass_on(fd, {"step": 7}))
    end.close()
    other.close()


@pytest.mark.parametrize("more", [0, 1])
def test_too_many_accesses_are_refused_as_a_whole(peer: Peer, more: int) -> None:
    fd = os.memfd_create("accesses")
    os.truncate(fd, (OP_ACCESSES_MAX + more) * ROWS.itemsize)
    message = {"step": 7, "names": [[4096, "parameter", "a.weight"]]}
    accesses = peer.link.take_accesses(peer.pass_on(fd, message))
    os.close(fd)
    assert len(accesses.rows) == (0 if more else OP_ACCESSES_MAX)
    assert accesses.refused == (OP_ACCESSES_MAX + 1 if more else 0)
    assert list(accesses.names) == [4096]


def test_the_event_is_cleared_without_blocking_whatever_the_process_does(peer: Peer) -> None:
    os.set_blocking(peer.event_fd, True)  # also makes the link's descriptor blocking
    cleared = threading.Thread(target=peer.link.clear_event, daemon=True)
    cleared.start()
    cleared.join(PATIENCE_S)
    assert not cleared.is_alive()
    os.eventfd_write(peer.event_fd, 3)
    peer.link.clear_event()
    os.set_blocking(peer.event_fd, False)
    with pytest.raises(BlockingIOError):
        os.eventfd_read(peer.event_fd)


def test_a_closed_link_keeps_the_last_words_and_no_mapping() -> None:
    peer = Peer()
    peer.segment.header["step"] = 7
    mapped = memfd_mappings()
    peer.link.close()
    assert memfd_mappings() == mapped - 1
    assert peer.link.segment.words().step == 7
    peer.segment.header["step"] = 8
    peer.link.beat()
    peer.link.set_flags(on=1)
    assert peer.link.segment.words().step == 7
    assert int(peer.segment.header["heartbeat"][0]) == int(peer.segment.header["flags"][0]) == 0
    assert len(peer.link.segment.drain()) == 0
    peer.hang_up()


def memfd_mappings() -> int:
    gc.collect()  # objects of earlier tests, which may hold mappings
    return Path("/proc/self/maps").read_text().count("/memfd:control")


def test_threads_that_set_different_flags_lose_none(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, delays = peer.link.segment.set_flags, random.Random(0)

    def write_late(flags: int) -> None:
        # ShimLink.set_flags() has to hold a lock. Otherwise, another thread could write newer
        # flags during this sleep, and the write below would overwrite them with older flags.
        time.sleep(delays.uniform(0, 5e-4))
        write(flags)

    monkeypatch.setattr(peer.link.segment, "set_flags", write_late)
    wrong: list[int] = []

    def toggle(bit: int) -> None:
        for wanted in [bit, 0] * 20:
            peer.link.set_flags(on=wanted, off=bit)
            time.sleep(5e-4)  # lets every write that is under way end
            if int(peer.segment.header["flags"][0]) & bit != wanted:
                wrong.append(bit)

    threads = [threading.Thread(target=toggle, args=(1 << index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert int(peer.segment.header["flags"][0]) == 0
