# SPDX-License-Identifier: Apache-2.0
"""Limits the memory that the messages of one user's processes take.

A message counts from the first bytes of its frame until its session has handled it. While the
messages of a user take too much, the connections of that user are not read; only a message that
has been admitted already is read to its end.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

USER_BYTES = 16 << 20
"""Two of the largest messages of a shim (frames.FROM_SHIM), which are rare. Admitted ones may
exceed it by what their values take more than their frames."""
ROOT_BYTES = 64 << 20
SMALL_BYTES = 64 << 10
"""Frames up to this size are counted when they are whole: a partial one takes no more than a
connection's buffer in the kernel."""


@dataclass
class Account:
    """What the messages of one connection take. Its user's lock protects it."""

    uid: int
    admitted_bytes: int = 0  # of the incomplete frame, if that is large
    admitted_s: float = 0.0  # time.monotonic()
    unhandled_bytes: int = 0  # of whole messages
    closed: bool = False


class MessageMemory:
    """Thread-safe."""

    def __init__(self, on_room: Callable[[int], None]) -> None:
        """on_room: called from any thread, with a user ID, when that user's connections may be
        read again."""
        self._on_room = on_room
        self._lock = threading.Lock()
        self._used: Counter[int] = Counter()
        self._waiting: set[int] = set()

    def may_read(self, account: Account, frame_bytes: int) -> bool:
        """Whether to read on; if not, on_room() follows. frame_bytes: of the incomplete frame."""
        with self._lock:
            if account.admitted_bytes:
                return True
            if self._used[account.uid] >= _limit(account.uid):
                self._waiting.add(account.uid)
                return False
            if frame_bytes > SMALL_BYTES:
                account.admitted_bytes, account.admitted_s = frame_bytes, time.monotonic()
                self._used[account.uid] += frame_bytes
            return True

    def received(self, account: Account, message_bytes: int) -> None:
        """Count a whole message."""
        with self._lock:
            self._used[account.uid] += message_bytes - account.admitted_bytes
            account.unhandled_bytes += message_bytes
            account.admitted_bytes = 0

    def handled(self, account: Account, message_bytes: int) -> None:
        """Take a message out of the count."""
        with self._lock:
            if account.closed:
                return
            account.unhandled_bytes -= message_bytes
        self._give(account.uid, message_bytes)

    def close(self, account: Account) -> None:
        """Take everything of a connection out of the count."""
        with self._lock:
            if account.closed:
                return
            account.closed = True
        self._give(account.uid, account.admitted_bytes + account.unhandled_bytes)

    def _give(self, uid: int, size_bytes: int) -> None:
        with self._lock:
            self._used[uid] -= size_bytes
            wake = uid in self._waiting and 2 * self._used[uid] <= _limit(uid)
            if wake:
                self._waiting.discard(uid)
            if not self._used[uid]:
                del self._used[uid]
        if wake:
            self._on_room(uid)


def _limit(uid: int) -> int:
    return USER_BYTES if uid else ROOT_BYTES
