# SPDX-License-Identifier: Apache-2.0
"""Answers of the control socket, with and without a file descriptor."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sentineld.base.errors import SentinelError
from sentineld.control.client import request, request_file
from sentineld.control.frames import Message
from sentineld.control.server import ControlServer, Verb, WithFile

LARGE = "x" * (3 << 20)
"""Larger than a socket's buffer."""


def file_with(text: str) -> int:
    fd = os.memfd_create("test", os.MFD_CLOEXEC)
    os.write(fd, text.encode())
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def refuse(uid: int, arguments: Message) -> object:
    raise SentinelError("wrong-state", "not now", "wait")


VERBS: dict[str, Verb] = {
    "echo": lambda uid, arguments: [uid, arguments],
    "file": lambda uid, arguments: WithFile(arguments, file_with("hello")),
    "large": lambda uid, arguments: WithFile(LARGE, file_with("hello")),
    "refuse": refuse,
}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "control.sock"
    loop = asyncio.new_event_loop()
    control = ControlServer(VERBS)
    listening = loop.run_until_complete(asyncio.start_unix_server(control.serve, str(path)))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield path
    loop.call_soon_threadsafe(listening.close)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def open_test_files() -> int:
    links = (Path("/proc/self/fd") / name for name in os.listdir("/proc/self/fd"))
    return sum("memfd:test" in os.readlink(link) for link in links if link.is_symlink())


def test_the_value_is_returned(server: Path) -> None:
    assert request(server, "echo", a=1) == [os.getuid(), {"a": 1}]


@pytest.mark.parametrize(("verb", "result"), [("file", {"a": 1}), ("large", LARGE)])
def test_a_file_comes_with_its_answer(server: Path, verb: str, result: object) -> None:
    answer, fd = request_file(server, verb, a=1)
    assert answer == result
    with os.fdopen(fd) as file:
        assert file.read() == "hello"


def test_files_that_were_not_requested_are_closed(server: Path) -> None:
    assert request(server, "file", a=1) == {"a": 1}
    # The server thread closes its copy shortly after it has answered.
    deadline_s = time.monotonic() + 30
    while open_test_files():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_an_answer_without_its_file_is_an_error(server: Path) -> None:
    with pytest.raises(SentinelError, match="has no file") as error:
        request_file(server, "echo")
    assert error.value.code == "protocol-mismatch"


def test_refusals_keep_their_code_and_hint(server: Path) -> None:
    with pytest.raises(SentinelError, match=r"not now \(wait\)") as error:
        request_file(server, "refuse")
    assert error.value.code == "wrong-state"
