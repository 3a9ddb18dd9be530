# SPDX-License-Identifier: Apache-2.0
"""The client's side of the control socket: answers, files and errors."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sentineld.base.errors import SentinelError
from sentineld.control.client import request, request_file
from sentineld.control.frames import encode
from tests.unit.waiting import wait


@contextmanager
def answering(path: Path, data: bytes) -> Iterator[Path]:
    """A daemon that answers one request with these bytes and hangs up."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen(1)

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(data)

        thread = threading.Thread(target=answer)
        thread.start()
        yield path
        thread.join()


def files_open() -> int:
    count = 0
    for name in os.listdir("/proc/self/fd"):
        # The server's thread may close a listed descriptor before its link is read.
        with contextlib.suppress(FileNotFoundError):
            count += "memfd:test" in os.readlink(f"/proc/self/fd/{name}")
    return count


def test_files_that_nobody_asked_for_are_closed(server: Path) -> None:
    assert request(server, "file", a=1) == {"a": 1}
    # The server, a thread of this process, closes its own descriptor just after it has answered.
    wait(lambda: not files_open())


def test_an_answer_without_its_file_is_an_error(server: Path) -> None:
    with pytest.raises(SentinelError, match="has no file") as error:
        request_file(server, "echo")
    assert error.value.code == "protocol-mismatch"


def test_refusals_come_back_whole(server: Path) -> None:
    with pytest.raises(SentinelError, match=r"not now \(wait\)") as error:
        request_file(server, "refuse")
    assert error.value.code == "wrong-state"


def test_without_a_daemon_the_hint_says_how_to_start_it(tmp_path: Path) -> None:
    with pytest.raises(SentinelError, match="No such file or directory") as error:
        request(tmp_path / "none.sock", "status")
    assert error.value.code == "daemon-unreachable"
    assert error.value.hint.startswith("start it (systemctl start sentineld)")


def test_a_socket_that_the_user_may_not_open_is_not_permitted() -> None:
    script = (
        "import os, pathlib, sys\n"
        "from sentineld.base.errors import SentinelError\n"
        "from sentineld.control.client import request\n"
        "if os.geteuid() == 0: os.setuid(65534)\n"
        "try: request(pathlib.Path(sys.argv[1]), 'status')\n"
        "except SentinelError as error: print(error.code)\n"
    )
    # Other users cannot enter tmp_path, so a socket there would be inaccessible with any mode.
    # Therefore the socket is in another folder, which all users may enter.
    with (
        tempfile.TemporaryDirectory() as folder,
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener,
    ):
        path = Path(folder) / "control.sock"
        listener.bind(str(path))
        listener.listen(1)
        os.chmod(folder, 0o755)
        path.chmod(0o600 if os.geteuid() == 0 else 0)
        done = subprocess.run(
            [sys.executable, "-c", script, path], capture_output=True, text=True, check=True
        )
    assert done.stdout == "not-permitted\n"


@pytest.mark.parametrize(
    ("data", "code", "said"),
    [
        (b"", "daemon-unreachable", "closed the connection without an answer"),
        (b"\x05\x00\x00", "daemon-unreachable", "closed the connection without an answer"),
        (b"\x02\x00\x00\x00[]", "protocol-mismatch", "not hold a JSON object"),
        (encode({"result": 1}), "protocol-mismatch", "speaks control protocol None"),
        (encode({"version": 2, "result": 1}), "protocol-mismatch", "speaks control protocol 2"),
        (encode({"version": 1, "error": {"code": "new-in-2"}}), "failed", "gave no reason"),
    ],
)
def test_an_answer_that_is_none_is_an_error(
    tmp_path: Path, data: bytes, code: str, said: str
) -> None:
    with (
        answering(tmp_path / "control.sock", data) as path,
        pytest.raises(SentinelError, match=said) as error,
    ):
        request(path, "status")
    assert error.value.code == code


def test_an_answer_that_does_not_come_in_time_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen(1)
        with pytest.raises(SentinelError, match="no answer to status in time") as error:
            request(path, "status", timeout_s=0.01)
    assert error.value.code == "daemon-unreachable"


def fill_backlog(path: Path) -> list[socket.socket]:
    """Connect until the listener's backlog is full."""
    clients = []
    while True:
        client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        clients.append(client)
        try:
            client.connect(str(path))
        except BlockingIOError:
            return clients


def test_a_request_waits_its_turn_while_the_backlog_is_full(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen(1)
        clients = fill_backlog(path)
        answers: list[object] = []
        asking = threading.Thread(target=lambda: answers.append(request(path, "status", 600.0)))
        asking.start()
        for _ in clients[:-1]:
            listener.accept()[0].close()
        connection, _ = listener.accept()
        with connection:
            connection.recv(1 << 16)
            connection.sendall(encode({"version": 1, "result": "late"}))
        asking.join()
        assert answers == ["late"]
        for client in clients:
            client.close()


def test_a_backlog_that_stays_full_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen(1)
        clients = fill_backlog(path)
        with pytest.raises(SentinelError, match="no daemon answers") as error:
            request(path, "status", timeout_s=0.05)
        assert error.value.code == "daemon-unreachable"
        for client in clients:
            client.close()
