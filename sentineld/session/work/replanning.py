# SPDX-License-Identifier: Apache-2.0
"""Another budget or policy for a managed session: planned by the profile that there is, while the
live plan goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable

from sentineld.base.background import Background
from sentineld.base.errors import SentinelError
from sentineld.profile.steps import Step
from sentineld.session.live.shapes import Planned
from sentineld.session.work.planning import Goal


class Replanning:
    """One request. The session's thread looks after it; another one waits."""

    doing = "planned again"

    def __init__(self, goal: Goal, make: Callable[[], Planned]) -> None:
        """make may raise SentinelError; it is called in a thread of its own."""
        self.goal = goal
        self._making = Background("planning again", make)
        self._finished = threading.Event()
        self._problem: SentinelError | None = None

    def on_step(self, step: Step) -> bool:
        """Steps don't matter to it."""
        return False

    def ready(self) -> bool:
        """Whether there is a plan, or none to be had."""
        return self._making.done()

    def planned(self) -> Planned | None:
        """Once it is ready; None: there is none to be had, and done() says why."""
        return self._making.result

    def done(self) -> None:
        """Let the waiting thread go."""
        self._problem = self._making.problem
        self._finished.set()

    def fail(self, reason: str) -> None:
        """Let the waiting thread go with an error; the plan comes too late."""
        self._problem = SentinelError("failed", reason, "see sentinelctl status")
        self._finished.set()

    def wait(self) -> None:
        """Until the plan is on its way into the process. Raises SentinelError."""
        self._finished.wait()
        if self._problem is not None:
            raise self._problem
