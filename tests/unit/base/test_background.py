# SPDX-License-Identifier: Apache-2.0
"""Background work reports its result or its error."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from sentineld.base.background import Background
from sentineld.base.errors import SentinelError
from tests.unit.waiting import PATIENCE_S, wait


def finished(background: Background[Any]) -> Background[Any]:
    wait(background.done)
    return background


def test_the_result_is_available_once_the_work_is_done() -> None:
    go = threading.Event()

    def work() -> int:
        assert go.wait(PATIENCE_S)
        return 7

    background = Background("the work", work)
    assert not background.done()
    go.set()
    assert finished(background).result == 7
    assert background.problem is None


def test_a_sentinel_error_is_kept_as_the_problem() -> None:
    problem = SentinelError("usage", "no such thing", "another")

    def fail() -> None:
        raise problem

    background = finished(Background("the work", fail))
    assert (background.result, background.problem) == (None, problem)


def test_an_unexpected_exception_is_reported_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    background = finished(Background("the work", lambda: 1 // 0))
    assert background.problem is not None
    assert "the work: integer division" in background.problem.message
    assert "ZeroDivisionError" in caplog.text
