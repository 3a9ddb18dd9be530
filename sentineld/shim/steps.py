# SPDX-License-Identifier: Apache-2.0
"""Finds the end of a training step: the end of step() of the optimizer that steps least often.

Training repeats, so the step may begin at any point of the cycle, but always at the same one.
With several optimizers (a GAN's), the others step at least once between two steps of the slowest.
"""

from __future__ import annotations

import weakref

FORGOTTEN_AFTER = 64
"""Other optimizers' steps in a row after which the chosen one counts as unused."""


class StepEnds:
    """Decides for each finished optimizer.step() whether it ends the training step."""

    def __init__(self) -> None:
        self._chosen: weakref.ref[object] | None = None
        # Steps of the chosen optimizer.
        self._steps = 0
        # By id(optimizer): self._steps at the other optimizer's last step.
        self._steps_at: dict[int, int] = {}
        # Other optimizers' steps since the chosen one's last step.
        self._others = 0

    def ended(self, optimizer: object) -> bool:
        """Record that optimizer has finished step(); True if the training step ends here."""
        chosen = self._chosen() if self._chosen is not None else None
        if chosen is None or self._others >= FORGOTTEN_AFTER:
            self._choose(optimizer)
            chosen = optimizer
        if optimizer is chosen:
            self._steps += 1
            self._others = 0
            return True
        self._others += 1
        before = self._steps_at.get(id(optimizer))
        self._steps_at[id(optimizer)] = self._steps
        if before is None or self._steps - before < 2:
            return False
        # The chosen optimizer stepped at least twice in between: this one is slower.
        self._choose(optimizer)
        self._steps = 1
        return True

    def _choose(self, optimizer: object) -> None:
        self._chosen = weakref.ref(optimizer)
        self._steps = 0
        self._others = 0
        self._steps_at.clear()
