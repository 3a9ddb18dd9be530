# SPDX-License-Identifier: Apache-2.0
"""Watches the profilers that the training script itself starts, and its forks.

torch can run only one profiler in a thread. If the access step started its profiler while one of
the script's profilers runs or is prepared (the warm-up of torch.profiler.schedule()), the script's
profiler would lose its events, and torch 2.13 can even crash. If the script's profiler started
while that of the access step runs, either torch would raise an error in the script, or the end of
the access step would also end the script's profiler.

A child that is forked while the profiler of the access step runs would inherit the profiler. Until
the child exits, the inherited profiler would record events that are never read.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from torch.autograd import profiler

OWN_PROFILER = "the access step waits for the end of the script's own profiler"
FORK = "the access step is repeated, because the process has forked during it"


class ScriptProfiler:
    """Tracks the script's profilers, and calls give_way() before they start and before forks."""

    def __init__(self) -> None:
        self.active = False
        """Whether a profiler of the script is prepared or runs."""
        self.give_way: Callable[[str], None] | None = None
        """Called with OWN_PROFILER before a profiler of the script is prepared or started, and with
        FORK before a fork, in the thread that does this. None: the shim's own profiler does not
        run."""
        self._own_thread: int | None = None

    def watch(self) -> None:
        """Wrap the private functions of torch by which profilers are prepared, started and stopped.
        If this torch lacks one of them, the others are wrapped. Watch the forks, too. Call this
        once."""
        os.register_at_fork(before=self._before_fork)
        for name, active in (
            ("_prepare_profiler", True),
            ("_enable_profiler", True),
            ("_disable_profiler", False),
        ):
            if (function := getattr(profiler, name, None)) is not None:
                setattr(profiler, name, self._watched(function, active))

    @contextmanager
    def own(self) -> Iterator[None]:
        """While this context is open, ignore the calling thread's use of the profiler functions."""
        self._own_thread = threading.get_ident()
        try:
            yield
        finally:
            self._own_thread = None

    def _before_fork(self) -> None:
        self._make_way(FORK)

    def _make_way(self, reason: str) -> None:
        give_way = self.give_way  # read once: another thread may clear the attribute meanwhile
        if give_way is not None:
            give_way(reason)

    def _watched(self, function: Callable[..., Any], active: bool) -> Callable[..., Any]:
        """Wrap a function. active: whether a profiler of the script is active after its call."""

        @wraps(function)
        def watched(*args: Any, **kwargs: Any) -> Any:
            if self._own_thread == threading.get_ident():
                return function(*args, **kwargs)
            if active:
                self._make_way(OWN_PROFILER)
            result = function(*args, **kwargs)
            self.active = active
            return result

        return watched
