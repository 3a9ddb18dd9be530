# SPDX-License-Identifier: Apache-2.0
"""A training that never takes a step of torch.optim: its updates are made by hand.

Nothing tells where its steps end, so it cannot be managed, and is told so, once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

PASSES_MAX = 100
"""Backward passes before the first step; few scripts accumulate over so many."""


def grad_fn(output: Any) -> Any:
    """The autograd node of a module's output, of its first tensor that has one; or None."""
    if isinstance(output, torch.Tensor):
        return output.grad_fn
    if isinstance(output, dict):
        output = output.values()
    elif not isinstance(output, (tuple, list)):
        return None
    for part in output:
        if isinstance(part, torch.Tensor) and part.grad_fn is not None:
            return part.grad_fn
    return None


class Stepless:
    """Counts the backward passes through one layer as long as there has been no step.

    looking: cleared by whoever sees a step.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        """say: is given the line, once."""
        self.looking = True
        self._say = say
        self._layer: int | None = None
        self._pass = -1
        self._passes = 0

    def after_forward(self, module: torch.nn.Module, output: Any) -> None:
        """A module was called; the first one with a gradient's graph is the one to look at."""
        if self._layer not in (None, id(module)):
            return
        node = grad_fn(output)
        if node is not None:
            self._layer = id(module)
            node.register_prehook(self._backward)

    def _backward(self, gradients: object) -> None:
        this_pass = torch._C._current_graph_task_id()
        if this_pass == self._pass or not self.looking:
            return
        self._pass = this_pass
        self._passes += 1
        if self._passes == PASSES_MAX:
            self.looking = False
            self._say(
                f"{PASSES_MAX} backward passes without a step of torch.optim: there is nothing to"
                " manage as long as the script updates its parameters by hand"
            )
