# SPDX-License-Identifier: Apache-2.0
"""Limits the number of log lines, because other users' processes can cause many of them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass

PERIOD_S = 60.0
SITE_LINES = 30
"""Maximum number of lines of one logging statement for one user in a period; see LogLimit."""
LINES = 3000
"""Maximum total number of lines in a period; they take about 0.5 MB."""
LOGGED_USER: ContextVar[int | None] = ContextVar("LOGGED_USER", default=None)
"""The user whose process the current thread serves."""
_WARNING = "; further lines like this are left out for a minute"


@dataclass
class _Count:
    began_s: float
    lines: int = 0
    left_out: int = 0


class LogLimit(logging.Filter):
    """In each period (PERIOD_S), passes at most SITE_LINES lines of each logging statement, and at
    most LINES lines in total.

    If a logging statement writes lines about several users, SITE_LINES applies to each user, so
    that no user can suppress lines about another user's processes. The user is the argument `uid`
    of about() or, if the statement does not give it, the thread's LOGGED_USER. The last line within
    either limit says that further lines will be left out. In the next period, a statement's first
    line gives the number of that statement's lines that were left out because of SITE_LINES. The
    first line of the next period, no matter which statement writes it, gives the number of lines
    that were left out because of LINES. This number includes the unreported lines of statements
    that have written no line for a whole period; the limit forgets these statements.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """clock: returns the time in seconds."""
        super().__init__()
        self._clock = clock
        self._lock = threading.Lock()
        """Needed, because the module logging calls filter() from all threads without a lock."""
        self._sites: dict[tuple[str, int, object], _Count] = {}
        self._total = _Count(clock())
        self._unreported = 0  # number of left-out lines that their own statements will not report

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to write the line; may append a remark to it."""
        with self._lock:
            return self._passes(record)

    def _passes(self, record: logging.LogRecord) -> bool:
        now_s = self._clock()
        if now_s - self._total.began_s >= PERIOD_S:
            self._begin_period(now_s)
        if self._total.lines >= LINES:
            self._total.left_out += 1
            return False
        site = (record.pathname, record.lineno, getattr(record, "uid", LOGGED_USER.get()))
        count = self._sites.setdefault(site, _Count(now_s))
        left_out = 0
        if now_s - count.began_s >= PERIOD_S:
            left_out = count.left_out
            self._sites[site] = count = _Count(now_s)
        if count.lines >= SITE_LINES:
            count.left_out += 1
            return False
        count.lines += 1
        self._total.lines += 1
        if left_out:
            record.msg = f"{record.msg} ({left_out} lines like this were left out)"
        if self._unreported:
            record.msg = f"{record.msg} ({self._unreported} lines of all kinds were left out)"
            self._unreported = 0
        if count.lines == SITE_LINES or self._total.lines == LINES:
            record.msg = f"{record.msg}{_WARNING}"
        return True

    def _begin_period(self, now_s: float) -> None:
        """Begin a period of the limit LINES, and forget the counts that are not needed any more."""
        ended, self._total = self._total, _Count(now_s)
        self._unreported += ended.left_out
        for site, count in list(self._sites.items()):
            if now_s - count.began_s < PERIOD_S:
                continue
            if count.left_out and count.began_s >= ended.began_s:
                continue  # the statement can still report these lines in the period that begins now
            self._unreported += count.left_out
            del self._sites[site]
