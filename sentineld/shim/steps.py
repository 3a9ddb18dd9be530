# SPDX-License-Identifier: Apache-2.0
"""Detects the end of each training step.

A training step ends when the optimizer that steps least often has finished step().

The steps of the optimizers repeat in a cycle. A training step may begin at any point of this cycle,
provided that every training step begins at the same point. If there are several optimizers (as in a
GAN, or if each parameter has its own), one of them is chosen: the one that steps least often. Each
of the others steps at least once between two steps of the chosen one.
"""

from __future__ import annotations

import weakref
from types import CodeType, FrameType

FORGOTTEN_AFTER = 64
"""If another optimizer makes this many steps while the chosen optimizer makes none, the chosen
optimizer counts as no longer used. The number of the other optimizers makes no difference: each of
hundreds may step once between two steps of the chosen one."""


class Calls:
    """Finds the end of the outermost of nested calls of one optimizer's step().

    torch calls the hooks of optimizers twice in a call of step() whose class overrides step() and
    calls super().step(), if an optimizer of the base class was created before.
    """

    def __init__(self) -> None:
        # id of an optimizer in a call -> id and code of the frame of its outermost call. No frame
        # is kept, because it would keep its local variables alive. Threads may call optimizers at
        # the same time, so each access to the dict is a single call of one of its methods.
        self._calls: dict[int, tuple[int, CodeType]] = {}

    def begin(self, optimizer: object, call: FrameType) -> None:
        """Record that a call of optimizer.step() begins. call: the frame that calls the hooks."""
        # torch reports no end of a call that raises an error. Such a call is not on the stack any
        # more, and its frame's id may be used again: the hooks of all optimizers are called by the
        # same function of torch.
        frame = id(call), call.f_code
        for other, dead_call in list(self._calls.items()):
            if dead_call == frame:
                self._calls.pop(other, None)
        open_call = self._calls.get(id(optimizer))
        if open_call is None or not _is_called_by(call, open_call):
            self._calls[id(optimizer)] = frame

    def end(self, optimizer: object, call: FrameType) -> bool:
        """Record that a call of optimizer.step() ends; returns whether it is the outermost one.
        call: the frame that was passed to begin()."""
        if self._calls.get(id(optimizer)) != (id(call), call.f_code):
            return False
        self._calls.pop(id(optimizer), None)
        return True


def _is_called_by(call: FrameType, caller: tuple[int, CodeType]) -> bool:
    """Whether the frame with this id and code is among the callers of the frame `call`."""
    frame = call.f_back
    while frame is not None:
        if (id(frame), frame.f_code) == caller:
            return True
        frame = frame.f_back
    return False


class StepEnds:
    """Decides for each finished optimizer.step() whether it ends the training step."""

    def __init__(self) -> None:
        self._chosen: weakref.ref[object] | None = None
        # Number of the chosen optimizer's steps.
        self._steps = 0
        # id of another optimizer -> self._steps at that optimizer's last step.
        self._steps_at: dict[int, int] = {}
        # id of another optimizer -> number of its steps since the chosen optimizer's last step.
        self._others: dict[int, int] = {}
        # Whether one of these numbers has reached FORGOTTEN_AFTER.
        self._forgotten = False

    def ended(self, optimizer: object) -> bool:
        """Record that optimizer has finished step(); True if the training step ends here."""
        chosen = self._chosen() if self._chosen is not None else None
        if chosen is None or self._forgotten:
            self._choose(optimizer)
            chosen = optimizer
        if optimizer is chosen:
            self._steps += 1
            self._others.clear()
            return True
        count = self._others[id(optimizer)] = self._others.get(id(optimizer), 0) + 1
        self._forgotten = count >= FORGOTTEN_AFTER
        before = self._steps_at.get(id(optimizer))
        self._steps_at[id(optimizer)] = self._steps
        if before is None or self._steps - before < 2:
            return False
        # Since this optimizer's previous step, the chosen optimizer has stepped at least twice. So
        # this optimizer steps less often than the chosen one, and replaces it.
        self._choose(optimizer)
        self._steps = 1
        return True

    def _choose(self, optimizer: object) -> None:
        self._chosen = weakref.ref(optimizer)
        self._steps = 0
        self._others.clear()
        self._forgotten = False
        self._steps_at.clear()
