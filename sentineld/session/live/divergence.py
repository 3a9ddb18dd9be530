# SPDX-License-Identifier: Apache-2.0
"""When steps that leave their plan are reason enough to look for another plan.

A step that allocates otherwise than planned costs little: the heap serves it. To
change the plan costs some steps of recording, and a new shape a profile. So a
plan is left only when the steps have changed for some time, and a training that
changes shape all the time is left with the plan that it has, which is said.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from sentineld.observe.ring import ShimWords

IN_ROW_MAX = 3
"""Diverged steps in a row after which a plan is left."""
WINDOW_STEPS = 32
"""Steps that are looked at for how many of them diverge."""
LEAVE_SHARE = 0.6
"""A plan is left, too, if more steps than this diverge: two in a row may then be alike."""
STRAY_SHARE = 0.25
"""Of the steps; if so many diverge and the plan stays, that is said."""
EARNED_STEPS = 32
"""Steps that followed a plan and so made up for entering it."""
STRAYS = "its steps change too often for another plan: this one stays for those that it fits"
PATIENCE_STEPS = 64
PATIENCE_STEPS_MAX = 4096


class Patience:
    """How long a session keeps a plan at least: longer each time that one was left too soon."""

    def __init__(self) -> None:
        self.steps = 0

    def left(self, followed_steps: int) -> None:
        """A plan that so many steps followed is left."""
        if followed_steps >= EARNED_STEPS:
            self.steps = 0
        else:
            self.steps = min(max(2 * self.steps, PATIENCE_STEPS), PATIENCE_STEPS_MAX)


@dataclass(frozen=True)
class Verdict:
    """leave: look for another plan, for the reason in text. Else text is what is new about the
    steps, "" for nothing."""

    leave: bool = False
    text: str = ""


class Divergence:
    """Follows the shim's words while a plan is live."""

    def __init__(self, words: ShimWords, patience: Patience) -> None:
        """words: as the plan becomes live."""
        self._patience = patience
        self._began = words
        self._looks = deque([(words.step, words.diverged_steps)])
        self._strays = False

    def followed_steps(self, words: ShimWords) -> int:
        """Steps since the plan became live that did as planned."""
        live_steps = words.step - self._began.step
        return max(live_steps - (words.diverged_steps - self._began.diverged_steps), 0)

    def may_leave(self, words: ShimWords) -> bool:
        """Whether the plan has been live for long enough to be left for another."""
        live_steps = words.step - self._began.step
        return live_steps >= self._patience.steps or self.followed_steps(words) >= EARNED_STEPS

    def look(self, words: ShimWords) -> Verdict:
        """What the words of this moment say."""
        self._looks.append((words.step, words.diverged_steps))
        while len(self._looks) > 2 and words.step - self._looks[1][0] >= WINDOW_STEPS:
            self._looks.popleft()
        steps = words.step - self._looks[0][0]
        diverged = words.diverged_steps - self._looks[0][1]
        if words.diverged_in_row >= IN_ROW_MAX:
            why = f"{words.diverged_in_row} steps in a row diverged from the plan"
        elif steps >= WINDOW_STEPS and diverged > LEAVE_SHARE * steps:
            why = f"{diverged} of {steps} steps diverged from the plan"
        else:
            return self._stay(steps, diverged)
        return Verdict(True, why) if self.may_leave(words) else self._stray()

    def _stay(self, steps: int, diverged: int) -> Verdict:
        if steps < WINDOW_STEPS:
            return Verdict()
        if diverged >= STRAY_SHARE * steps:
            return self._stray()
        if self._strays and diverged < STRAY_SHARE * steps / 2:
            self._strays = False
            return Verdict(text="its steps follow the plan again")
        return Verdict()

    def _stray(self) -> Verdict:
        if self._strays:
            return Verdict()
        self._strays = True
        return Verdict(text=STRAYS)
