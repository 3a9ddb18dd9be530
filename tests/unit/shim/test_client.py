# SPDX-License-Identifier: Apache-2.0
"""The shim's end of the socket: no daemon can delay a step."""

from __future__ import annotations

import errno
import os
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from sentineld.control.frames import encode
from sentineld.shim import client
from sentineld.shim.client import Client


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[tuple[Client, socket.socket]]:
    """The shim's end and the daemon's end of a connection."""
    path = tmp_path / "shim.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen(1)
        shim = Client(str(path))
        assert shim.connect()
        daemon, _ = listener.accept()
    with daemon:
        yield shim, daemon
    shim.close()


def test_receive_returns_after_reads_max_reads(
    ends: tuple[Client, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "READS_MAX", 1)
    shim, daemon = ends
    for number in range(10):
        daemon.sendall(encode({"type": "note", "number": number, "text": "x" * 10_000}))
    parts = []
    while sum(map(len, parts)) < 10:
        parts.append(shim.receive())
        assert shim.connected
    assert len(parts) > 1
    assert [message["number"] for part in parts for message in part] == list(range(10))


def test_messages_before_a_hang_up_are_returned(ends: tuple[Client, socket.socket]) -> None:
    shim, daemon = ends
    daemon.sendall(encode({"type": "detach"}) + encode({"type": "note"})[:-1])
    daemon.close()
    assert shim.receive() == [{"type": "detach"}]
    assert not shim.connected
    assert shim.receive() == []


def test_no_reconnect_for_a_while_after_a_refusal(
    ends: tuple[Client, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1000.0
    monkeypatch.setattr(client.time, "monotonic", lambda: now_s)
    shim, _ = ends
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        Path(shim.path).unlink()
        listener.bind(shim.path)
        listener.listen(1)
        shim.back_off()
        assert not shim.connected
        now_s += client.REFUSED_SECONDS - 1
        assert not shim.connect()
        now_s += 1
        assert shim.connect()


def test_a_connection_is_made_once_a_descriptor_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "RETRY_SECONDS", 0)
    shim = Client(str(tmp_path / "shim.sock"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(shim.path)
        listener.listen(1)
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
        try:
            assert not shim.connect()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert shim.connect()
        shim.close()


def test_a_message_whose_descriptors_cannot_be_duplicated_leaves_none_open(
    ends: tuple[Client, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    shim, daemon = ends
    made: list[int] = []
    duplicate = os.dup

    def dup(descriptor: int) -> int:
        if made:
            raise OSError(errno.EMFILE, "Too many open files")
        made.append(duplicate(descriptor))
        return made[-1]

    monkeypatch.setattr(client.os, "dup", dup)
    with pytest.raises(OSError, match="Too many open files"):
        shim.send({"type": "hello"}, (daemon.fileno(), daemon.fileno()))
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(made[0])
    shim.send({"type": "note"})
    daemon.settimeout(10)
    assert daemon.recv(1024)[4:] == b'{"type": "note"}'
