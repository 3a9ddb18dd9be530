# SPDX-License-Identifier: Apache-2.0
"""Decides when diverged steps justify leaving a plan for another plan.

A diverged step costs little: the shim just allocates the step's tensors in the heap instead of the
arena. Another plan costs some recorded steps and, if the shape is new, a profile. So a plan is left
only after the steps have diverged for some time. If plans are left before they have paid off, each
further plan is kept for longer (Patience). If a plan is kept although many steps diverge, status
and log say that it fits poorly.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from sentineld.observe.control_segment import ShimWords

IN_ROW_MAX = 3
"""Number of diverged steps in a row after which a plan is left."""
WINDOW_STEPS = 32
"""Number of latest steps over which the share of diverged steps is computed."""
LEAVE_SHARE = 0.6
"""Share of diverged steps above which a plan is left. A new profile needs two consecutive steps of
one shape that the plan does not fit. Above this share, two such steps are likely."""
KEEP_SHARE = 0.25
"""If at least this share of the steps diverges, a plan that is kept is reported as a poor fit."""
EARNED_STEPS = 32
"""A plan has paid off when this number of steps have followed it without diverging."""
POOR_FIT = "steps change shape too often to replace the plan: it is kept for the steps that fit it"
PATIENCE_STEPS = 64
PATIENCE_STEPS_MAX = 4096


class Patience:
    """The minimum number of steps for which a session keeps a plan that has not paid off
    (EARNED_STEPS). The number begins at 0 and becomes 0 whenever a plan that has paid off is left.
    When any other plan is left, the number becomes PATIENCE_STEPS if it was 0; otherwise it
    doubles, up to PATIENCE_STEPS_MAX."""

    def __init__(self) -> None:
        self.steps = 0

    def left(self, followed_steps: int) -> None:
        """Record that a plan is left. followed_steps: steps under the plan that did not diverge."""
        if followed_steps >= EARNED_STEPS:
            self.steps = 0
        else:
            self.steps = min(max(2 * self.steps, PATIENCE_STEPS), PATIENCE_STEPS_MAX)


@dataclass(frozen=True)
class Verdict:
    """Result of a check of the steps."""

    leave: bool = False  # leave the plan for another one
    text: str = ""  # the reason to leave, or a new remark on the steps; "": neither


class Divergence:
    """Checks the shim's counters of diverged steps while a plan is live."""

    def __init__(self, words: ShimWords, patience: Patience) -> None:
        """words: the control words at the time when the plan became live."""
        self._patience = patience
        self._began = words
        self._looks = deque([(words.step, words.diverged_steps)])
        self._poor_fit = False

    def followed_steps(self, words: ShimWords) -> int:
        """Number of steps that followed the plan since it became live."""
        live_steps = words.step - self._began.step
        return max(live_steps - (words.diverged_steps - self._began.diverged_steps), 0)

    def may_leave(self, words: ShimWords) -> bool:
        """Whether the plan has been live long enough to be left for another one."""
        live_steps = words.step - self._began.step
        return live_steps >= self._patience.steps or self.followed_steps(words) >= EARNED_STEPS

    def look(self, words: ShimWords) -> Verdict:
        """Check the current control words."""
        # Keep the last look at each step. If all looks were kept, they would accumulate while the
        # training is idle.
        if words.step > self._looks[-1][0]:
            self._looks.append((words.step, words.diverged_steps))
        elif words.step == self._looks[-1][0] and len(self._looks) > 1:
            self._looks[-1] = (words.step, words.diverged_steps)
        while len(self._looks) > 2 and words.step - self._looks[1][0] >= WINDOW_STEPS:
            self._looks.popleft()
        steps = words.step - self._looks[0][0]
        diverged = words.diverged_steps - self._looks[0][1]
        if words.diverged_in_row >= IN_ROW_MAX:
            why = f"{words.diverged_in_row} steps in a row diverged from the plan"
        elif steps >= WINDOW_STEPS and diverged > LEAVE_SHARE * steps:
            why = f"{diverged} of {steps} steps diverged from the plan"
        else:
            return self._keep(steps, diverged)
        return Verdict(True, why) if self.may_leave(words) else self._keep_anyway()

    def _keep(self, steps: int, diverged: int) -> Verdict:
        if steps < WINDOW_STEPS:
            return Verdict()
        if diverged >= KEEP_SHARE * steps:
            return self._keep_anyway()
        if self._poor_fit and diverged < KEEP_SHARE * steps / 2:
            self._poor_fit = False
            return Verdict(text="steps follow the plan again")
        return Verdict()

    def _keep_anyway(self) -> Verdict:
        if self._poor_fit:
            return Verdict()
        self._poor_fit = True
        return Verdict(text=POOR_FIT)
