# SPDX-License-Identifier: Apache-2.0
"""Answers of the control socket, with and without a file descriptor."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from sentineld.base.errors import SentinelError
from sentineld.control import server as module
from sentineld.control.client import CONTROL_VERSION, request, request_file
from sentineld.control.frames import Message, encode
from sentineld.control.server import VERBS, Caller, listen, require_no_daemon
from tests.unit.control.controlled import LARGE, serving
from tests.unit.control.lingering import LINGER_S, lingering, send_away
from tests.unit.waiting import PATIENCE_S, wait

PENDING_MAX = VERBS.of_user if os.getuid() else VERBS.of_root


def test_the_value_is_returned(server: Path) -> None:
    assert request(server, "echo", a=1) == [os.getuid(), {"a": 1}]


@pytest.mark.parametrize(("verb", "result"), [("file", {"a": 1}), ("large", LARGE)])
def test_a_file_comes_with_its_answer(server: Path, verb: str, result: object) -> None:
    answer, fd = request_file(server, verb, a=1)
    assert answer == result
    with os.fdopen(fd) as file:
        assert file.read() == "hello"


class Blocking:
    """A verb that ends when its caller hangs up."""

    def __init__(self) -> None:
        self.begun = self.given_up = 0

    def __call__(self, caller: Caller, arguments: Message) -> str:
        self.begun += 1
        assert caller.gone.wait(PATIENCE_S)
        self.given_up += 1
        return "nobody reads this"


def ask(path: Path, verb: str) -> socket.socket:
    """Send a request without waiting for its answer."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(path))
    connection.sendall(encode({"version": CONTROL_VERSION, "verb": verb, "arguments": {}}))
    return connection


def test_pending_verbs_do_not_delay_status(tmp_path: Path) -> None:
    blocking = Blocking()
    with serving(tmp_path / "control.sock", {"block": blocking}) as path:
        clients = [ask(path, "block") for _ in range(PENDING_MAX)]
        wait(lambda: blocking.begun == PENDING_MAX)
        assert request(path, "status") == "here"
        with pytest.raises(SentinelError) as refused:
            request(path, "block")
        assert refused.value.code == "busy"
        assert refused.value.message == (
            f"user {os.getuid()} has {PENDING_MAX} pending commands, which is the limit"
        )
        for client in clients:
            client.close()
        wait(lambda: blocking.given_up == PENDING_MAX)


def test_a_hung_up_client_frees_its_place(tmp_path: Path) -> None:
    blocking = Blocking()
    with serving(tmp_path / "control.sock", {"block": blocking}) as path:
        for number in range(3 * PENDING_MAX):
            client = ask(path, "block")
            wait(lambda number=number: blocking.begun == number + 1)  # type: ignore[misc]
            client.close()
            wait(lambda number=number: blocking.given_up == number + 1)  # type: ignore[misc]


def test_half_a_request_expires(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REQUEST_S", 0.2)
    with serving(tmp_path / "control.sock", {}) as path, socket.socket(socket.AF_UNIX) as half:
        half.connect(str(path))
        half.sendall(b"\x10\x00")
        half.settimeout(PATIENCE_S)
        assert half.recv(1) == b""


def test_an_answer_that_is_not_read_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ANSWER_S", 0.2)
    large = {"large": lambda caller, arguments: LARGE}
    with serving(tmp_path / "control.sock", large) as path:
        client = ask(path, "large")
        wait(lambda: closed(client))


def test_a_descriptor_in_a_request_does_not_block_others(server: Path) -> None:
    with lingering() as stuck, socket.socket(socket.AF_UNIX) as client:
        client.connect(str(server))
        send_away(client, b"\x10", [stuck.fileno()])
        stuck.close()
        assert request(server, "status", timeout_s=LINGER_S / 2) == "here"


def test_an_answer_that_is_not_taken_counts_as_pending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ANSWER_S", 600.0)  # no answer expires during the test
    large = {"large": lambda caller, arguments: LARGE}
    with serving(tmp_path / "control.sock", large) as path:
        clients = [ask(path, "large") for _ in range(PENDING_MAX)]
        for client in clients:
            client.recv(1)  # the server has begun to send this client's answer
        with pytest.raises(SentinelError) as refused:
            request(path, "large")
        assert refused.value.code == "busy"
        for client in clients:
            client.close()
        wait(lambda: answered(path, "large"))


def answered(path: Path, verb: str) -> bool:
    try:
        request(path, verb)
    except SentinelError as error:
        return error.code != "busy"
    return True


def test_a_second_request_ends_the_connection(tmp_path: Path) -> None:
    blocking = Blocking()
    with serving(tmp_path / "control.sock", {"block": blocking}) as path:
        client = ask(path, "block")
        wait(lambda: blocking.begun == 1)
        client.sendall(encode({}))
        client.settimeout(PATIENCE_S)
        assert client.recv(1) == b""
        assert blocking.given_up == 1
        client.close()


def test_a_verb_that_fails_is_answered(tmp_path: Path) -> None:
    def fail(caller: Caller, arguments: Message) -> object:
        raise BrokenPipeError("of a planning process")

    with (
        serving(tmp_path / "control.sock", {"fail": fail}) as path,
        pytest.raises(SentinelError, match="internal error of the daemon"),
    ):
        request(path, "fail")


def closed(client: socket.socket) -> bool:
    """Whether the server has closed the connection; reads none of the received data."""
    try:
        client.send(b"x", socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
    except BrokenPipeError:
        return True
    except BlockingIOError:
        return False
    return False


def test_listening_replaces_nothing_but_a_dead_socket(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    listener = listen(path, 0o600, None)
    for refuse in (lambda: listen(path, 0o600, None), lambda: require_no_daemon(path)):
        with pytest.raises(SentinelError, match="another daemon listens") as refused:
            refuse()
        assert refused.value.code == "busy"
    listener.close()
    require_no_daemon(path)
    file = tmp_path / "notes"
    file.write_text("kept")
    with pytest.raises(SentinelError, match=r"cannot listen at .*in use"):
        listen(file, 0o600, None)
    assert file.read_text() == "kept"


@pytest.mark.parametrize("name", ["", "file/control.sock", 200 * "x"])
def test_a_path_that_cannot_be_a_socket_is_reported(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SentinelError, match="cannot listen at") as caught:
        listen(tmp_path / name, 0o600, None)
    assert "None" not in caught.value.message
