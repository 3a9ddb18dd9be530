# SPDX-License-Identifier: Apache-2.0
"""Where a training step ends: after the optimizer that steps least often.

A step is a circle, so it may be cut anywhere, but always at the same place.
With one optimizer that is the end of its step(). With several (a GAN's), it is
the end of the one that turns most slowly: every other one has then stepped at
least once in between.
"""

from __future__ import annotations

import weakref

FORGOTTEN_AFTER = 64
"""Ends of other optimizers without one of the chosen one: it is no longer in use."""


class StepEnds:
    """Decides for each finished optimizer.step() whether it ends the training step."""

    def __init__(self) -> None:
        self._chosen: weakref.ref[object] | None = None
        self._turns = 0  # of the chosen one
        self._turns_at: dict[int, int] = {}  # optimizer: the chosen one's turns when it last ended
        self._others = 0  # ends of others since the chosen one's last

    def ended(self, optimizer: object) -> bool:
        """Note that optimizer has finished a step(); True if the training step ends with it."""
        chosen = self._chosen() if self._chosen is not None else None
        if chosen is None or self._others >= FORGOTTEN_AFTER:
            self._choose(optimizer)
            chosen = optimizer
        if optimizer is chosen:
            self._turns += 1
            self._others = 0
            return True
        self._others += 1
        before = self._turns_at.get(id(optimizer))
        self._turns_at[id(optimizer)] = self._turns
        if before is None or self._turns - before < 2:
            return False
        # The chosen one turned twice meanwhile: this one is slower.
        self._choose(optimizer)
        self._turns = 1
        return True

    def _choose(self, optimizer: object) -> None:
        self._chosen = weakref.ref(optimizer)
        self._turns = 0
        self._others = 0
        self._turns_at.clear()
