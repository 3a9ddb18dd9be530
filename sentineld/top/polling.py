# SPDX-License-Identifier: Apache-2.0
"""Asks the daemon for its state at intervals, in a thread.

This thread and the threads that run the user's actions (app.py) are created with daemon=True, so
the program can end while a request is under way. sentineld then cancels the request.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from sentineld.base.errors import SentinelError
from sentineld.top.readings import Reading, ResidencyReading


class Control(Protocol):
    """The daemon's control socket; a failed request raises SentinelError."""

    def ask(self, verb: str, **arguments: Any) -> Any:
        """Send a verb and return the answer."""

    def ask_long(self, verb: str, **arguments: Any) -> Any:
        """Like ask(), for a verb that may take hours."""


@dataclass(frozen=True)
class Polled:
    """The result of one poll: a reading, or the error."""

    reading: Reading | None = None
    residency: ResidencyReading | None = None
    """Residency of the chosen session; None: no plan of this session is live, no session is chosen,
    or the daemon cannot report the residency."""
    error: SentinelError | None = None


def poll(control: Control, key: str | None) -> Polled:
    """Ask for the state now. key: key of the session whose residency is wanted, or None."""
    try:
        reading = Reading.of(control.ask("status"))
    except SentinelError as error:
        return Polled(error=error)
    session = reading.session(key)
    if session is None or not session.managed:
        return Polled(reading)
    try:
        return Polled(
            reading, ResidencyReading.of(session.key, control.ask("residency", pid=session.pid))
        )
    except SentinelError:
        # Either the session has ended or left its plan after the status was read, or the daemon is
        # of an earlier version, which does not have this verb.
        return Polled(reading)


class Poller:
    """Polls the daemon from start() to stop(). Any thread may call the other methods."""

    def __init__(
        self, control: Control, interval_s: float, report: Callable[[Polled], None]
    ) -> None:
        """report: called in the poller's thread with each result."""
        self._control, self._interval_s, self._report = control, interval_s, report
        self._key: str | None = None
        self._wake = threading.Event()
        self._stopping = threading.Event()

    def choose(self, key: str | None) -> None:
        """Choose the session whose residency is wanted, and poll now."""
        self._key = key
        self.poll_now()

    def poll_now(self) -> None:
        """Poll without waiting for the end of the interval."""
        self._wake.set()

    def start(self) -> None:
        """Begin to poll."""
        threading.Thread(target=self._run, name="poll", daemon=True).start()

    def stop(self) -> None:
        """Stop polling. Does not wait for a request that is under way."""
        self._stopping.set()
        self._wake.set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._wake.clear()
            polled = poll(self._control, self._key)
            if self._stopping.is_set():
                return
            self._report(polled)
            self._wake.wait(self._interval_s)
