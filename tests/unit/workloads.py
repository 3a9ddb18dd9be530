# SPDX-License-Identifier: Apache-2.0
"""Training steps of a toy network, run by the toy trainer."""

from __future__ import annotations

from dataclasses import dataclass

from sentineld.model.profile import Profile
from sentineld.model.protocol import Boundary
from sentineld.profile.attribution import build_profile
from sentineld.profile.steps import Step, StepCutter
from tests.unit.trainer import HEAP, MIB, PAGE, Tensor, Trainer


@dataclass(frozen=True)
class Network:
    """A gated network: a block saves three activations; the optimizer has two states per weight."""

    blocks: int = 12
    weights: int = 3  # parameters per block
    weight_bytes: int = MIB  # size of one parameter
    activation_bytes: int = 2 * MIB  # size of one activation
    bytes_per_s: float = 400e6  # see Trainer.bytes_per_s

    @classmethod
    def of_pages(
        cls, blocks: int, weight_pages: int, activation_pages: int, bytes_per_s: float = bytes_per_s
    ) -> Network:
        """A network whose parameters and activations have these numbers of pages."""
        return cls(
            blocks=blocks,
            weight_bytes=weight_pages * PAGE,
            activation_bytes=activation_pages * PAGE,
            bytes_per_s=bytes_per_s,
        )


def train(
    network: Network, steps: int, cuts: tuple[int, ...] = (), observed_steps: int = 1
) -> Trainer:
    """Train; the trainer keeps samples and operators' accesses of the last observed_steps steps."""
    trainer = Trainer(bytes_per_s=network.bytes_per_s)
    blocks = range(network.blocks)
    parameters = [
        [trainer.alloc(network.weight_bytes) for _ in range(network.weights)] for _ in blocks
    ]
    states = [
        [(trainer.alloc(w.bytes), trainer.alloc(w.bytes)) for w in block] for block in parameters
    ]
    gradients: list[Tensor] = []
    trainer.cuts = cuts
    for number in range(steps):
        if number == steps - observed_steps:
            trainer.take_samples(), trainer.take_ops()
        trainer.begin_step()
        trainer.free(*gradients)
        gradients = _step(trainer, network, parameters, states)
    trainer.finish()
    return trainer


def _step(
    trainer: Trainer,
    network: Network,
    parameters: list[list[Tensor]],
    states: list[list[tuple[Tensor, Tensor]]],
) -> list[Tensor]:
    size = network.activation_bytes
    trainer.boundary(Boundary.FORWARD, "embedding")
    x = trainer.alloc(size)
    trainer.touch([], [x])
    saved: list[tuple[Tensor, Tensor, Tensor]] = []
    for index, weights in enumerate(parameters):
        trainer.boundary(Boundary.FORWARD, f"{index}.gate")
        gate, scratch = trainer.alloc(size), trainer.alloc(size // 2)
        trainer.touch([x, *weights[:1]], [scratch])
        trainer.touch([scratch], [gate])
        trainer.free(scratch)
        trainer.boundary(Boundary.FORWARD, f"{index}.value")
        value = trainer.alloc(size)
        trainer.touch([x, *weights[1:]], [value])
        trainer.boundary(Boundary.OUTSIDE)
        product, total = trainer.alloc(size), trainer.alloc(size)
        trainer.touch([gate, value], [product])
        trainer.touch([product, x], [total])
        trainer.free(product)
        saved.append((x, gate, value))
        x = total
    trainer.boundary(Boundary.FORWARD, "head")
    logits = trainer.alloc(64 * 1024)
    trainer.touch([x], [logits])
    trainer.boundary(Boundary.BACKWARD, "head")
    slope = trainer.alloc(size)
    trainer.touch([logits, x], [slope])
    trainer.free(logits, x)
    gradients: list[Tensor] = []
    for index in reversed(range(network.blocks)):
        x, gate, value = saved[index]
        weights = parameters[index]
        trainer.boundary(Boundary.BACKWARD, f"{index}.value")
        by_value, by_gate = trainer.alloc(size), trainer.alloc(size)
        trainer.touch([slope, gate], [by_value])
        trainer.touch([slope, value], [by_gate])
        trainer.free(value)
        for weight in weights[1:]:
            gradients.append(trainer.alloc(weight.bytes))
            trainer.touch([by_value, x], [gradients[-1]])
        trainer.boundary(Boundary.BACKWARD, f"{index}.gate")
        before = trainer.alloc(size)
        trainer.touch([by_gate, gate, *weights[:1]], [before])
        gradients.append(trainer.alloc(weights[0].bytes))
        trainer.touch([before, x], [gradients[-1]])
        trainer.touch([before, by_value, slope], [slope])
        trainer.free(before, by_value, by_gate, gate, x)
    trainer.boundary(Boundary.BACKWARD, "embedding")
    trainer.touch([slope], [])
    trainer.free(slope)
    trainer.boundary(Boundary.OPTIMIZER)
    turns = [
        (w, s)
        for block, state in zip(parameters, states, strict=True)
        for w, s in zip(block, state, strict=True)
    ]
    order = sorted(range(len(gradients)), key=lambda i: gradients[i].cursor or 0)
    for (weight, (square, momentum)), at in zip(turns, order, strict=True):
        gradient = gradients[at]
        scratch = trainer.alloc(weight.bytes)
        trainer.touch([gradient, square], [square])
        trainer.touch([square], [scratch])
        trainer.touch([scratch, gradient, momentum], [momentum])
        trainer.touch([momentum, weight], [weight])
        trainer.free(scratch)
    return gradients


def profiled(network: Network, cuts: tuple[int, ...] = ()) -> tuple[Profile, Step]:
    """Return (profile of a steady-state step, that step)."""
    trainer = train(network, 4, cuts)
    step = StepCutter().feed(trainer.take_records())[-1]
    profile = build_profile(
        step, trainer.take_samples(), trainer.take_ops(), trainer.layers, cuts=cuts, heap_base=HEAP
    )
    return profile, step
