# SPDX-License-Identifier: Apache-2.0
"""A step with a few tensors."""

from __future__ import annotations

from sentineld.model.protocol import Boundary
from sentineld.profile.steps import Step, StepCutter
from tests.unit.trainer import PAGE, Tensor, Trainer


def last_step(trainer: Trainer) -> Step:
    return StepCutter().feed(trainer.take_records())[-1]


def toy(steps: int = 3, cuts: tuple[int, ...] = (), forget: int = 0) -> Step:
    """The step in the diagram of test_lifetimes.py. The records of the first `forget` steps are
    discarded."""
    trainer = Trainer(cuts=cuts)
    trainer.alloc(4 * PAGE)
    gradient: Tensor | None = None
    for number in range(steps):
        if number == forget:
            trainer.take_records()
        trainer.begin_step()
        if gradient is not None:
            trainer.free(gradient)
        trainer.boundary(Boundary.FORWARD, "a")
        saved = trainer.alloc(2 * PAGE)
        scratch = trainer.alloc(PAGE + 1)
        trainer.touch([], [scratch, saved])
        trainer.free(scratch)
        trainer.boundary(Boundary.BACKWARD, "a")
        gradient = trainer.alloc(3 * PAGE)
        trainer.touch([saved], [gradient])
        trainer.free(saved)
        trainer.boundary(Boundary.OPTIMIZER)
        trainer.touch([gradient], [])
    trainer.finish()
    return last_step(trainer)
