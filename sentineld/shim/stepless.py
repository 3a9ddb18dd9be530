# SPDX-License-Identifier: Apache-2.0
"""Detects a training that updates its parameters without torch.optim.

For the shim, a training step ends at the end of the optimizer's step(). A training that never calls
step() cannot be managed, and the user gets one message that says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

PASSES_MAX = 100
"""The user gets the message after this many backward passes without an optimizer step. Few scripts
accumulate gradients over more passes."""


def grad_fn(output: Any) -> Any:
    """Return the grad_fn of the output's first tensor that has one, or None."""
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


class MissingSteps:
    """Counts the backward passes through one layer until the first optimizer step."""

    def __init__(self, report: Callable[[str], None]) -> None:
        """report: called at most once, with the message."""
        self.active = True
        """Whether passes are still counted. The hooks clear this flag at the first optimizer step;
        it is also cleared when the message is reported."""
        self._report = report
        self._layer: int | None = None
        self._pass = -1
        self._passes = 0

    def after_forward(self, module: torch.nn.Module, output: Any) -> None:
        """Count backward passes through the first module whose output has a grad_fn."""
        if self._layer not in (None, id(module)):
            return
        node = grad_fn(output)
        if node is not None:
            self._layer = id(module)
            node.register_prehook(self._backward)

    def _backward(self, gradients: object) -> None:
        this_pass = torch._C._current_graph_task_id()
        if this_pass == self._pass or not self.active:
            return
        self._pass = this_pass
        self._passes += 1
        if self._passes == PASSES_MAX:
            self.active = False
            self._report(
                f"{PASSES_MAX} backward passes without a step of torch.optim: sentineld cannot"
                " manage a script that updates its parameters itself"
            )
