# SPDX-License-Identifier: Apache-2.0
"""The client's side of the control socket: answers, files and errors."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from sentineld.base.errors import SentinelError
from sentineld.control.client import request, request_file


def files_open() -> int:
    links = (Path("/proc/self/fd") / name for name in os.listdir("/proc/self/fd"))
    return sum("memfd:test" in os.readlink(link) for link in links if link.is_symlink())


def test_files_that_nobody_asked_for_are_closed(server: Path) -> None:
    assert request(server, "file", a=1) == {"a": 1}
    # The server, a thread of this process, closes its own just after it has answered.
    deadline_s = time.monotonic() + 30
    while files_open():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_an_answer_without_its_file_is_an_error(server: Path) -> None:
    with pytest.raises(SentinelError, match="has no file") as error:
        request_file(server, "echo")
    assert error.value.code == "protocol-mismatch"


def test_refusals_come_back_whole(server: Path) -> None:
    with pytest.raises(SentinelError, match=r"not now \(wait\)") as error:
        request_file(server, "refuse")
    assert error.value.code == "wrong-state"
