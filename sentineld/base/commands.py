# SPDX-License-Identifier: Apache-2.0
"""A thread's queue of commands. Other threads add them, and may wait for the result."""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import Any

Command = Callable[[], None]

ALIVE_CHECK_S = 1.0


class Commands:
    """A queue of commands. The owning thread calls get(), other threads put() and call()."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Command] = queue.SimpleQueue()

    def put(self, command: Command) -> None:
        """Have the owning thread run a command; returns at once."""
        self._queue.put(command)

    def get(self, timeout_s: float) -> Command | None:
        """The next command; None if none came in time."""
        try:
            return self._queue.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def call(self, function: Callable[[], Any], ended: Callable[[], bool]) -> Any:
        """Have the owning thread run a function; returns its result or raises its error.

        ended: returns whether the owning thread has ended; if so, EOFError is raised.
        """
        done: queue.SimpleQueue[tuple[Any, Exception | None]] = queue.SimpleQueue()

        def command() -> None:
            try:
                done.put((function(), None))
            except Exception as error:
                done.put((None, error))

        self.put(command)
        while True:
            try:
                result, error = done.get(timeout=ALIVE_CHECK_S)
            except queue.Empty:
                if ended():
                    raise EOFError from None
                continue
            if error is not None:
                raise error
            return result
