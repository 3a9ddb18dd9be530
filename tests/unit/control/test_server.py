# SPDX-License-Identifier: Apache-2.0
"""Answers of the control socket, with and without a file descriptor."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sentineld.control.client import request, request_file
from tests.unit.control.controlled import LARGE


def test_the_value_is_returned(server: Path) -> None:
    assert request(server, "echo", a=1) == [os.getuid(), {"a": 1}]


@pytest.mark.parametrize(("verb", "result"), [("file", {"a": 1}), ("large", LARGE)])
def test_a_file_comes_with_its_answer(server: Path, verb: str, result: object) -> None:
    answer, fd = request_file(server, verb, a=1)
    assert answer == result
    with os.fdopen(fd) as file:
        assert file.read() == "hello"
