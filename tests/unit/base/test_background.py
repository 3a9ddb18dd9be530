# SPDX-License-Identifier: Apache-2.0
"""A background computation returns its result, or the reason why there is none."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from sentineld.base.background import Background
from sentineld.base.errors import SentinelError
from tests.unit.waiting import PATIENCE_S, wait


def ended(background: Background[Any]) -> Background[Any]:
    wait(background.done)
    return background


def test_the_result_is_valid_once_done() -> None:
    let = threading.Event()

    def work() -> int:
        assert let.wait(PATIENCE_S)
        return 7

    background = Background("the work", work)
    assert not background.done()
    let.set()
    assert ended(background).result == 7
    assert background.problem is None


def test_an_error_is_kept() -> None:
    problem = SentinelError("usage", "no such thing", "another")

    def fail() -> None:
        raise problem

    background = ended(Background("the work", fail))
    assert (background.result, background.problem) == (None, problem)


def test_an_internal_error_is_kept_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    background = ended(Background("the work", lambda: 1 // 0))
    assert background.problem is not None
    assert "the work: integer division" in background.problem.message
    assert "ZeroDivisionError" in caplog.text
