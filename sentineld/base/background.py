# SPDX-License-Identifier: Apache-2.0
"""Runs a long computation in its own thread, so that it does not block the session's thread."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextvars import copy_context
from typing import Generic, TypeVar

from sentineld.base.errors import SentinelError
from sentineld.base.log_events import LogEvent, about

log = logging.getLogger(__name__)

Result = TypeVar("Result")


class Background(Generic[Result]):
    """Runs a function in a thread. result, problem and duration_s are valid as soon as done() is
    true."""

    def __init__(self, name: str, make: Callable[[], Result]) -> None:
        """make: the function to run; may raise SentinelError.
        name: the thread's name, which also appears in errors."""
        self.result: Result | None = None
        self.problem: SentinelError | None = None
        self.duration_s = 0.0
        self._thread = threading.Thread(
            target=copy_context().run, args=(self._run, make), daemon=True, name=name
        )
        self._thread.start()

    def done(self) -> bool:
        """Whether the function has ended, with a result or a problem."""
        return not self._thread.is_alive()

    def _run(self, make: Callable[[], Result]) -> None:
        began_s = time.monotonic()
        try:
            self.result = make()
        except SentinelError as error:
            self.problem = error
        except Exception as error:
            # The session continues without the result, and handles the error like a SentinelError.
            log.exception(
                "%s: internal error", self._thread.name, extra=about(LogEvent.INTERNAL_ERROR)
            )
            self.problem = SentinelError("failed", f"{self._thread.name}: {error}", "see the log")
        self.duration_s = time.monotonic() - began_s
