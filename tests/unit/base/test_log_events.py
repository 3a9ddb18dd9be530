# SPDX-License-Identifier: Apache-2.0
"""Kinds of log lines, and the fields that a thread adds to its log lines."""

from __future__ import annotations

import logging
import re

import pytest

from sentineld.base.background import Background
from sentineld.base.log_events import LOGGED_FIELDS, LogEvent, about
from tests.unit.waiting import wait

log = logging.getLogger(__name__)


def test_each_kind_has_an_id_of_its_own() -> None:
    assert all(re.fullmatch("[0-9a-f]{32}", event) for event in LogEvent)
    assert len({event.value for event in LogEvent}) == len(LogEvent.__members__)


def test_a_line_has_its_kind_and_its_facts(caplog: pytest.LogCaptureFixture) -> None:
    log.warning("hello", extra=about(LogEvent.REGISTERED, pid=7, uid=1000))
    (record,) = caplog.records
    assert vars(record)["event"] is LogEvent.REGISTERED
    assert vars(record)["fields"] == {"pid": 7, "uid": 1000}
    assert vars(record)["uid"] == 1000


def test_without_a_user_the_threads_user_counts(caplog: pytest.LogCaptureFixture) -> None:
    log.warning("hello", extra=about(LogEvent.STARTED))
    assert not hasattr(caplog.records[0], "uid")


def test_a_threads_facts_pass_to_its_background_threads() -> None:
    token = LOGGED_FIELDS.set(lambda: {"pid": 7})
    try:
        background = Background("the work", lambda: LOGGED_FIELDS.get()())
    finally:
        LOGGED_FIELDS.reset(token)
    wait(background.done)
    assert background.result == {"pid": 7}
    assert LOGGED_FIELDS.get()() == {}
