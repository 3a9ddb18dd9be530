# SPDX-License-Identifier: Apache-2.0
"""When a training without steps is told so."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from sentineld.shim.stepless import PASSES_MAX, Stepless, grad_fn  # noqa: E402


class Run:
    """A model of two layers, one of them used twice, whose forwards a Stepless sees."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.stepless = Stepless(self.said.append)
        self.layers = [torch.nn.Linear(4, 4) for _ in range(2)]
        for layer in self.layers:
            layer.register_forward_hook(self._after_forward)

    def _after_forward(self, module: torch.nn.Module, args: object, output: object) -> None:
        if self.stepless.looking:
            self.stepless.after_forward(module, output)

    def passes(self, count: int) -> None:
        first, second = self.layers
        for _ in range(count):
            first(second(first(torch.ones(4)))).sum().backward()


def test_it_is_said_once_after_so_many_passes() -> None:
    run = Run()
    run.passes(PASSES_MAX - 1)
    assert run.said == []
    run.passes(PASSES_MAX)
    (line,) = run.said
    assert line.startswith(f"{PASSES_MAX} backward passes without a step of torch.optim")


def test_a_step_ends_the_count() -> None:
    run = Run()
    run.passes(PASSES_MAX - 1)
    run.stepless.looking = False
    run.passes(PASSES_MAX)
    assert run.said == []


def test_what_has_no_gradient_is_no_training() -> None:
    run = Run()
    with torch.no_grad():
        for _ in range(PASSES_MAX + 1):
            run.layers[0](torch.ones(4))
    assert run.said == []


def test_the_node_of_an_output_is_that_of_its_first_tensor_with_one() -> None:
    weight = torch.ones(1, requires_grad=True)
    made = weight * 2
    plain = torch.ones(1)
    assert grad_fn(made) is made.grad_fn
    assert grad_fn((plain, 3, made)) is made.grad_fn
    assert grad_fn({"a": plain, "b": made}) is made.grad_fn
    assert grad_fn(plain) is None
    assert grad_fn("text") is None
