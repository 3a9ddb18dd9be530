# SPDX-License-Identifier: Apache-2.0
"""Calls on descriptors that other processes sent, in threads that may block.

Any call on an unknown descriptor may block for as long as its sender likes: close() of a TCP
socket with SO_LINGER or of a file on FUSE, for example. So such calls are queued by the sender's
user ID, and each user's are made by a thread of its own. It ends when its queue is empty.

A queue takes every call, because a descriptor that nobody closes is lost for good. Its length is
limited where descriptors arrive: whoever receives them refuses a user with too_many().
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections import Counter, deque
from collections.abc import Callable

log = logging.getLogger(__name__)

CLOSING_MAX = 64
"""Calls of one user that may wait. A shim has at most 2 descriptors of unknown kind open."""

THREADS_MAX = 32
"""Users beyond these share a thread: one person may own 65,536 user IDs (subuid(5))."""

_SHARED = -1
_lock = threading.Lock()
_queues: dict[int, deque[Callable[[], object]]] = {}
"""By user ID or _SHARED."""
_served: set[int] = set()
"""Keys of the queues that have a thread."""
_waiting: Counter[int] = Counter()


def close_untrusted(uid: int, fd: int) -> None:
    """Close a descriptor that a process of this user sent; returns at once."""
    run_untrusted(uid, lambda: os.close(fd))


def run_untrusted(uid: int, call: Callable[[], object]) -> None:
    """Make a call on a descriptor that a process of this user sent; returns at once.

    The call may never return, and its OSErrors are ignored.
    """

    def counted() -> None:
        try:
            with contextlib.suppress(OSError):
                call()
        except Exception:
            log.exception("a call on a descriptor of user %d failed", uid)
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
        log.warning("descriptors of user %d stay open until their next call: %s", uid, error)
        with _lock:
            _served.discard(key)


def closing(uid: int) -> int:
    """Number of the user's calls that have not returned."""
    with _lock:
        return _waiting[uid]


def too_many(uid: int) -> bool:
    """Whether to take no more descriptors from this user."""
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
