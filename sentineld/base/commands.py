# SPDX-License-Identifier: Apache-2.0
"""A thread's queue of commands. Other threads add commands, and may wait for their results."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

Command = Callable[[], None]

ALIVE_CHECK_S = 1.0


class Backlog:
    """Counts the unhandled items of a queue and their bytes.

    The counts limit the memory that another process can occupy by filling the queue: when add()
    returns False, the caller stops reading from that process until on_room() is called. The caller
    still adds the items that it had already read; they count, too.
    """

    def __init__(self, items_max: int, bytes_max: int, on_room: Callable[[], None]) -> None:
        """on_room: called in the thread that handles the queue, when a full backlog has become half
        empty."""
        self._items_max, self._bytes_max = items_max, bytes_max
        self._on_room = on_room
        self._lock = threading.Lock()
        self._items = self._bytes = 0
        self._waiting = False

    def add(self, size_bytes: int) -> bool:
        """Count an item. Returns False if the caller must not read until on_room() is called."""
        with self._lock:
            self._items += 1
            self._bytes += size_bytes
            if self._items >= self._items_max or self._bytes >= self._bytes_max:
                self._waiting = True
            return not self._waiting

    def remove(self, size_bytes: int) -> None:
        """Stop counting an item that has been handled."""
        with self._lock:
            self._items -= 1
            self._bytes -= size_bytes
            room = 2 * self._items <= self._items_max and 2 * self._bytes <= self._bytes_max
            wake = self._waiting and room
            if wake:
                self._waiting = False
        if wake:
            self._on_room()


class Commands:
    """A queue of commands. The owning thread calls get(), other threads put() and call()."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Command] = queue.SimpleQueue()

    def put(self, command: Command) -> None:
        """Have the owning thread run a command; returns immediately."""
        self._queue.put(command)

    def get(self, timeout_s: float | None = None) -> Command | None:
        """Wait for the next command and return it; None after the time-out. timeout_s: None waits
        without a limit."""
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
                if ended() and done.empty():  # the thread may have run the function before it ended
                    raise EOFError from None
                continue
            if error is not None:
                raise error
            return result
