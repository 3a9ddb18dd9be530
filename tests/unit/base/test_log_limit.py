# SPDX-License-Identifier: Apache-2.0
"""LogLimit limits the number of log lines in total, and for each pair of log statement and user."""

from __future__ import annotations

import logging
import threading
import time

import pytest

from sentineld.base import log_limit
from sentineld.base.log_limit import PERIOD_S, SITE_LINES, LogLimit


class Lines(logging.Handler):
    """Collects the lines that pass the log limit. The test sets `now_s`, the limit's clock."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.lines: list[str] = []
        self.limit = LogLimit(lambda: self.now_s)
        self.addFilter(self.limit)
        self.log = logging.Logger("test")
        self.log.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def write(self, count: int, uid: int = 1000) -> None:
        for number in range(count):
            self.log.warning("line %d of user %d", number, uid, extra={"uid": uid})


def test_a_statement_has_a_limit_and_says_so() -> None:
    log = Lines()
    log.write(10 * SITE_LINES)
    assert len(log.lines) == SITE_LINES
    assert log.lines[0] == "line 0 of user 1000"
    assert log.lines[-1] == (
        f"line {SITE_LINES - 1} of user 1000; further lines like this are left out for a minute"
    )


def test_the_next_period_begins_with_the_number_of_lines_left_out() -> None:
    log = Lines()
    log.write(SITE_LINES + 5)
    log.now_s += PERIOD_S
    log.write(2)
    assert log.lines[SITE_LINES:] == [
        "line 0 of user 1000 (5 lines like this were left out)",
        "line 1 of user 1000",
    ]


def test_a_user_does_not_suppress_lines_about_another() -> None:
    log = Lines()
    log.write(2 * SITE_LINES, uid=1000)
    log.write(1, uid=1001)
    assert log.lines[-1] == "line 0 of user 1001"


def test_all_lines_together_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_limit, "LINES", 100)
    log = Lines()
    for uid in range(1000):
        log.write(1, uid)
    assert len(log.lines) == 100
    log.now_s += PERIOD_S
    log.write(2, uid=5000)
    assert log.lines[100:] == [
        "line 0 of user 5000 (900 lines of all kinds were left out)",
        "line 1 of user 5000",
    ]


def test_counts_of_users_whose_lines_have_ended_are_forgotten_but_their_lines_reported() -> None:
    log = Lines()
    for uid in range(50):
        log.write(SITE_LINES + 2, uid)
    for _ in range(3):
        log.now_s += PERIOD_S
        log.write(1, uid=5000)
    assert log.lines[-3:] == [
        "line 0 of user 5000",
        "line 0 of user 5000 (100 lines of all kinds were left out)",
        "line 0 of user 5000",
    ]
    assert len(log.limit._sites) == 1


def test_lines_of_several_threads_are_counted_one_at_a_time() -> None:
    inside: list[int] = []
    seen: list[int] = []

    def clock() -> float:
        inside.append(1)
        time.sleep(0.001)  # lets the other threads run
        seen.append(len(inside))
        inside.pop()
        return float(len(seen))

    limit = LogLimit(clock)

    def write(number: int) -> None:
        for line in range(10):
            place = f"{number}.py"
            limit.filter(logging.LogRecord("test", logging.INFO, place, line, "text", (), None))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(seen) == 1
