# SPDX-License-Identifier: Apache-2.0
"""The shim's end of the socket: no daemon holds a step up."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from sentineld.control.frames import encode
from sentineld.shim import client
from sentineld.shim.client import Client


def test_a_daemon_that_never_stops_writing_is_read_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "READS_MAX", 1)
    path = tmp_path / "shim.sock"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen(1)
    shim = Client(str(path))
    assert shim.connect()
    daemon, _ = listener.accept()
    for number in range(10):
        daemon.sendall(encode({"type": "note", "number": number, "text": "x" * 10_000}))
    parts = []
    while sum(map(len, parts)) < 10:
        parts.append(shim.receive())
        assert shim.connected
    assert len(parts) > 1
    assert [message["number"] for part in parts for message in part] == list(range(10))
    shim.close()
    daemon.close()
    listener.close()
