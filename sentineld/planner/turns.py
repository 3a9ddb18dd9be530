# SPDX-License-Identifier: Apache-2.0
"""Fair access of several owners to a limited resource."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Iterator
from contextlib import contextmanager


class Turns:
    """Lets a limited number of threads proceed at a time; each of them holds a place.

    A thread's turn is the time during which it holds a place. Free places go to the owners in
    rotation, so that an owner with many waiting threads delays another owner's next thread by at
    most one turn. Threads of one owner proceed in the order in which they called turn().
    """

    def __init__(self, places: int) -> None:
        """places: the maximum number of threads that proceed at a time; at least 1."""
        self._free = places
        self._lock = threading.Lock()
        # Owners in the order of their next turns; each with its waiting threads.
        self._waiting: OrderedDict[int, deque[threading.Event]] = OrderedDict()

    @contextmanager
    def turn(self, owner: int) -> Iterator[None]:
        """Wait for a place, and hold it within the with statement.

        An exception that ends the wait, such as KeyboardInterrupt, takes the thread out of the
        queue.
        """
        admitted = threading.Event()
        try:
            with self._lock:
                self._waiting.setdefault(owner, deque()).append(admitted)
                self._admit()
            admitted.wait()
            yield
        finally:
            with self._lock:
                self._end(owner, admitted)

    def waiting(self) -> int:
        """The number of threads that wait for a place."""
        with self._lock:
            return sum(map(len, self._waiting.values()))

    def _admit(self) -> None:
        while self._free and self._waiting:
            owner, threads = self._waiting.popitem(last=False)
            threads.popleft().set()
            self._free -= 1
            if threads:
                self._waiting[owner] = threads

    def _end(self, owner: int, admitted: threading.Event) -> None:
        """Free the thread's place if it was admitted; otherwise, take it out of the queue."""
        if admitted.is_set():
            self._free += 1
            self._admit()
            return
        threads = self._waiting.get(owner, deque())
        if admitted in threads:
            threads.remove(admitted)
        if not threads:
            self._waiting.pop(owner, None)
