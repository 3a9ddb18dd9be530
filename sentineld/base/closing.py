# SPDX-License-Identifier: Apache-2.0
"""Makes calls on received descriptors in separate threads, because such calls can block.

Any call on a descriptor of an unknown kind can block for a time that the sender of the descriptor
controls. Examples are close() of a TCP socket with SO_LINGER and close() of a file on FUSE.
Therefore each user has a queue of such calls and a thread that makes the calls. The thread ends
when the queue is empty. If more than THREADS_MAX users have calls that have not returned, further
users share one queue and one thread.

A queue accepts every call, because a descriptor whose close() is refused would stay open forever.
The code that receives descriptors limits the length of the queues: it refuses or closes a user's
connections while too_many() is true for this user.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections import Counter, deque
from collections.abc import Callable

from sentineld.base.log_events import LogEvent, about

log = logging.getLogger(__name__)

CLOSING_MAX = 64
"""While this many of a user's calls have not returned, no more of the user's descriptors are
accepted. A shim needs few calls: at most 2 of its descriptors are of an unknown kind."""

THREADS_MAX = 32
"""Maximum number of threads that serve one user each; further users share one more thread. The
number is limited because one person can own 65,536 user IDs (subuid(5))."""

_SHARED = -1
_lock = threading.Lock()
_queues: dict[int, deque[Callable[[], object]]] = {}
"""Queues by user ID. The key _SHARED is for the shared queue."""
_served: set[int] = set()
"""Keys of the queues that have a thread."""
_waiting: Counter[int] = Counter()
"""For each user ID, the number of calls that have not returned."""


def close_untrusted(uid: int, fd: int) -> None:
    """Close a descriptor that a process of this user sent; returns immediately."""
    run_untrusted(uid, lambda: os.close(fd))


def run_untrusted(uid: int, call: Callable[[], object]) -> None:
    """Make a call on a descriptor that a process of this user sent; returns immediately.

    The call may never return, and its OSErrors are ignored.
    """

    def counted() -> None:
        try:
            with contextlib.suppress(OSError):
                call()
        except Exception:
            log.exception(
                "a call on a descriptor of user %d failed",
                uid,
                extra=about(LogEvent.INTERNAL_ERROR),
            )
        finally:
            with _lock:
                _waiting[uid] -= 1
                if not _waiting[uid]:
                    del _waiting[uid]

    with _lock:
        _waiting[uid] += 1
        key = uid if uid in _queues or len(_queues) < THREADS_MAX else _SHARED
        _queues.setdefault(key, deque()).append(counted)
        if key in _served:
            return
        _served.add(key)
    try:
        threading.Thread(target=_serve, args=(key,), name=f"closing-{key}", daemon=True).start()
    except RuntimeError as error:
        log.warning("descriptors of user %d can't be closed yet: %s", uid, error)
        with _lock:
            _served.discard(key)


def closing(uid: int) -> int:
    """Number of the user's calls that have not returned."""
    with _lock:
        return _waiting[uid]


def too_many(uid: int) -> bool:
    """Whether no more descriptors may be accepted from this user."""
    return closing(uid) >= CLOSING_MAX


def _serve(key: int) -> None:
    while True:
        with _lock:
            queue = _queues[key]
            if not queue:
                del _queues[key]
                _served.discard(key)
                return
            call = queue.popleft()
        call()
