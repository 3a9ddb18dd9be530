# SPDX-License-Identifier: Apache-2.0
"""A request gives the thread that waits for it a result or an error, and undoes the request's
setup."""

from __future__ import annotations

import pytest

from sentineld.base.errors import SentinelError
from sentineld.session.work.request import Request


class Counting(Request[int]):
    """A request that has a result as soon as it is made, or is rejected with `problem`."""

    doing = "counted"

    def __init__(self, problem: str = "") -> None:
        super().__init__()
        self.undone: list[str] = []
        if problem:
            self._reject(problem)
        else:
            self._result = 7

    def _disarm(self) -> None:
        self.undone.append("armed pages")

    def _release(self) -> None:
        self.undone.append("its own")


def test_a_finished_request_has_a_result() -> None:
    request = Counting()
    request.finish()
    assert request.wait() == 7
    assert request.outcome == "counted"
    assert request.undone == ["armed pages", "its own"]


def test_a_rejected_request_raises_its_problem() -> None:
    request = Counting("too few steps")
    request.finish()
    with pytest.raises(SentinelError, match="too few steps"):
        request.wait()
    assert request.outcome == "not counted: too few steps"


def test_armed_pages_of_a_failed_request_are_the_sessions() -> None:
    request = Counting()
    request.fail("process 1: detached")
    with pytest.raises(SentinelError, match="process 1: detached"):
        request.wait()
    assert request.undone == ["its own"]
