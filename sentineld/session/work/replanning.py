# SPDX-License-Identifier: Apache-2.0
"""Planning for another budget, policy or placement of tensors, from the live plan's profile."""

from __future__ import annotations

from collections.abc import Callable

from sentineld.base.background import Background
from sentineld.session.live.shapes import Planned
from sentineld.session.work.planning import Goal
from sentineld.session.work.request import Request


class Replanning(Request[Planned]):
    """A request to plan for another budget, policy or placement of tensors, and to switch to this
    plan. The live plan is followed until the process takes the new plan's layout."""

    doing = "replanned"

    def __init__(self, goal: Goal, make: Callable[[], Planned]) -> None:
        """make: makes the plan, in a thread of its own; may raise SentinelError."""
        super().__init__()
        self.goal = goal
        self._making = Background("planning again", make)

    def ready(self) -> bool:
        """Whether planning has ended, successfully or not."""
        return self._making.done()

    def planned(self) -> Planned | None:
        """The plan; None: planning failed, and wait() raises the error. Call this only after
        ready() has returned true."""
        return self._making.result

    def finish(self) -> None:
        """Wake the waiting thread. Call this when the plan has been sent to the process, planning
        has failed, or the request has been rejected."""
        if self._problem is None:
            self._result, self._problem = self._making.result, self._making.problem
        super().finish()
