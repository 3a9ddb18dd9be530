# SPDX-License-Identifier: Apache-2.0
"""Detection of a training that never calls optimizer.step()."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from sentineld.shim.stepless import PASSES_MAX, MissingSteps, grad_fn  # noqa: E402


class Run:
    """A model of two layers, one of them called twice, with MissingSteps as a forward hook."""

    def __init__(self) -> None:
        self.reported: list[str] = []
        self.missing_steps = MissingSteps(self.reported.append)
        self.layers = [torch.nn.Linear(4, 4) for _ in range(2)]
        for layer in self.layers:
            layer.register_forward_hook(self._after_forward)

    def _after_forward(self, module: torch.nn.Module, args: object, output: object) -> None:
        if self.missing_steps.active:
            self.missing_steps.after_forward(module, output)

    def passes(self, count: int) -> None:
        first, second = self.layers
        for _ in range(count):
            first(second(first(torch.ones(4)))).sum().backward()


def test_reports_once_after_passes_max_backward_passes() -> None:
    run = Run()
    run.passes(PASSES_MAX - 1)
    assert run.reported == []
    run.passes(PASSES_MAX)
    (line,) = run.reported
    assert line.startswith(f"{PASSES_MAX} backward passes without a step of torch.optim")


def test_no_report_after_an_optimizer_step() -> None:
    run = Run()
    run.passes(PASSES_MAX - 1)
    run.missing_steps.active = False
    run.passes(PASSES_MAX)
    assert run.reported == []


def test_forward_calls_without_gradients_are_not_counted() -> None:
    run = Run()
    with torch.no_grad():
        for _ in range(PASSES_MAX + 1):
            run.layers[0](torch.ones(4))
    assert run.reported == []


def test_grad_fn_is_that_of_the_first_tensor_with_one() -> None:
    weight = torch.ones(1, requires_grad=True)
    made = weight * 2
    plain = torch.ones(1)
    assert grad_fn(made) is made.grad_fn
    assert grad_fn((plain, 3, made)) is made.grad_fn
    assert grad_fn({"a": plain, "b": made}) is made.grad_fn
    assert grad_fn(plain) is None
    assert grad_fn("text") is None
