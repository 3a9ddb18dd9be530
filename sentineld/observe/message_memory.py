# SPDX-License-Identifier: Apache-2.0
"""Limits the memory that the messages of one user's processes take.

Each message is one frame of the socket's protocol (control/frames.py). A large message counts
towards the limit from the time when the first bytes of its frame are read, and a small message from
the time when it is complete. Each message counts until its session has handled it. While the
messages of a user take too much memory, the connections of that user are not read. The only
exception is a large message whose first bytes were read before the limit was reached: it is
admitted, which means that it is read to its end.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

USER_BYTES = 16 << 20
"""Memory for the messages of one user: room for three of a shim's largest frames
(frames.FROM_SHIM), which are rare. A decoded message takes more memory than its frame, so the
messages that have been admitted can exceed this limit."""
ROOT_BYTES = 64 << 20
SMALL_BYTES = 64 << 10
"""Frames up to this size are counted when they are complete. Until then, such a frame takes no more
memory than the connection's socket buffer in the kernel."""


@dataclass
class Account:
    """Memory of the messages of one connection; protected by the lock of MessageMemory."""

    uid: int
    admitted_bytes: int = 0  # bytes of the incomplete frame if it is large, else 0
    admitted_s: float = 0.0  # when this frame was admitted, by time.monotonic()
    unhandled_bytes: int = 0  # bytes of complete messages that are not handled yet
    closed: bool = False


class MessageMemory:
    """Counts the bytes of each user's messages and compares them with the limit. Thread-safe."""

    def __init__(self, on_room: Callable[[int], None]) -> None:
        """on_room: called from any thread, with a user ID, when that user's connections may be
        read again."""
        self._on_room = on_room
        self._lock = threading.Lock()
        self._used: Counter[int] = Counter()
        self._waiting: set[int] = set()

    def may_read(self, account: Account, frame_bytes: int) -> bool:
        """Whether to continue reading the connection. If not, on_room() is called when half of the
        user's limit is free.

        frame_bytes: size of the incomplete frame; 0: unknown.
        """
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
        """Count a complete message."""
        with self._lock:
            self._used[account.uid] += message_bytes - account.admitted_bytes
            account.unhandled_bytes += message_bytes
            account.admitted_bytes = 0

    def handled(self, account: Account, message_bytes: int) -> None:
        """Stop counting a message that has been handled."""
        with self._lock:
            if account.closed:
                return
            account.unhandled_bytes -= message_bytes
        self._give(account.uid, message_bytes)

    def close(self, account: Account) -> None:
        """Stop counting all messages of a connection."""
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
