# SPDX-License-Identifier: Apache-2.0
"""Train a small gated network on a synthetic sequence: the demo's workload.

The workload runs as `python train.py` and as `python -m sentineld.shim train.py`. Only the option
--place needs sentineld.
"""

from __future__ import annotations

import argparse
import mmap
import random
import sys
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional


class PositionGate(nn.Module):
    """sigmoid(x * weight + shift): a gate learned for every position and channel."""

    def __init__(self, positions: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(positions, width))

    def forward(self, x: Tensor, shift: Tensor) -> Tensor:
        """x: [sequences, positions, width]; shift: [sequences, 1, width]."""
        return torch.addcmul(shift, x, self.weight).sigmoid_()


class PositionValue(nn.Module):
    """x * weight + bias, learned for every position and channel."""

    def __init__(self, positions: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter((torch.rand(positions, width) - 0.5) / 2)
        self.bias = nn.Parameter(torch.zeros(positions, width))

    def forward(self, x: Tensor) -> Tensor:
        """x: [sequences, positions, width]."""
        return torch.addcmul(self.bias, x, self.weight)


class Bottleneck(nn.Module):
    """Passes the mean over the positions through a narrow layer; the result is one shift per
    sequence and channel."""

    def __init__(self, width: int, narrow: int) -> None:
        super().__init__()
        self.down = nn.Parameter(torch.randn(narrow, width) / width**0.5)
        self.up = nn.Parameter(torch.randn(width, narrow) / narrow**0.5)

    def forward(self, x: Tensor) -> Tensor:
        """x: [sequences, positions, width]; returns [sequences, 1, width]."""
        squeezed = functional.linear(x.mean(1, keepdim=True), self.down)
        return functional.linear(functional.relu(squeezed), self.up)


class Block(nn.Module):
    """One residual block: x + gate(x) * value(x)."""

    def __init__(self, positions: int, width: int, narrow: int) -> None:
        super().__init__()
        self.bottleneck = Bottleneck(width, narrow)
        self.gate = PositionGate(positions, width)
        self.value = PositionValue(positions, width)

    def forward(self, x: Tensor) -> Tensor:
        """x: [sequences, positions, width]."""
        gate = self.gate(x, self.bottleneck(x))
        return x + gate * self.value(x)


class Network(nn.Module):
    """Maps symbols to the logits of the next symbol at every position."""

    def __init__(self, symbols: int, positions: int, width: int, narrow: int, blocks: int) -> None:
        super().__init__()
        self.symbol = nn.Embedding(symbols, width)
        self.blocks = nn.ModuleList(Block(positions, width, narrow) for _ in range(blocks))
        self.head = nn.Linear(width, symbols)

    def forward(self, symbols: Tensor) -> Tensor:
        """symbols: int64 [sequences, positions]; returns [sequences, positions, symbols]."""
        x = self.symbol(symbols)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(x)
        return logits


class MarkovText:
    """Seeded first-order Markov sequences of symbols."""

    def __init__(self, symbols: int, seed: int) -> None:
        self._random = random.Random(seed)
        self._symbols = range(symbols)
        self._weights = [
            [self._random.random() ** 4 for _ in range(symbols)] for _ in range(symbols)
        ]

    def batch(self, sequences: int, length: int) -> Tensor:
        """Draw int64 [sequences, length]."""
        return torch.tensor([self._sequence(length) for _ in range(sequences)])

    def _sequence(self, length: int) -> list[int]:
        drawn = [self._random.choice(self._symbols)]
        while len(drawn) < length:
            drawn += self._random.choices(self._symbols, self._weights[drawn[-1]])
        return drawn


class Clock:
    """A clock in the memory of a device, read in seconds.

    The first eight bytes of the memory are the time in picoseconds. Without a device, the time is
    that of the operating system.
    """

    def __init__(self, path: Path | None) -> None:
        self._words: memoryview | None = None
        if path is not None:
            with path.open("r+b") as file:
                memory = mmap.mmap(file.fileno(), mmap.PAGESIZE, prot=mmap.PROT_READ)
            self._words = memoryview(memory).cast("Q")

    def seconds(self) -> float:
        """The current time."""
        return time.monotonic() if self._words is None else self._words[0] / 1e12


def wait_for(path: Path) -> None:
    """Return once the file exists."""
    while not path.exists():
        time.sleep(0.05)


def place(model: nn.Module, requests: list[tuple[str, str]]) -> None:
    """Place parameters of the model. requests: (name, tier) of each."""
    import sentineld.shim

    for name, tier in requests:
        sentineld.shim.place(model.get_parameter(name), tier)


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--steps", type=int, default=20, help="number of steps; 0: train until killed"
    )
    parser.add_argument("--blocks", type=int, default=16)
    parser.add_argument("--sequences", type=int, default=2)
    parser.add_argument("--positions", type=int, default=256)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--narrow", type=int, default=8)
    parser.add_argument("--symbols", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--pause", type=float, default=0.0, metavar="SECONDS", help="sleep after each step"
    )
    parser.add_argument(
        "--clock", type=Path, help="device with the clock that times the steps; see class Clock"
    )
    parser.add_argument("--wait-file", type=Path, help="build the model once this file exists")
    parser.add_argument(
        "--place",
        nargs=2,
        action="append",
        default=[],
        metavar=("PARAMETER", "TIER"),
        help="place this parameter by sentineld.shim.place()",
    )
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> None:
    """Train and print one line per step: number, loss as a hexadecimal float, seconds."""
    options = parse(arguments)
    clock = Clock(options.clock)
    torch.set_num_threads(1)
    if options.wait_file is not None:
        print("waiting", flush=True)
        wait_for(options.wait_file)
    torch.manual_seed(options.seed)
    text = MarkovText(options.symbols, options.seed)
    model = Network(
        options.symbols, options.positions, options.width, options.narrow, options.blocks
    )
    if options.place:
        place(model, options.place)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-4, weight_decay=1e-4, foreach=False)
    step = 0
    while options.steps == 0 or step < options.steps:
        begin = clock.seconds()
        chain = text.batch(options.sequences, options.positions + 1)
        optimizer.zero_grad()
        logits = model(chain[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), chain[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        seconds = clock.seconds() - begin
        print(f"step {step} loss {loss.item().hex()} seconds {seconds:.6f}", flush=True)
        time.sleep(options.pause)
        step += 1


if __name__ == "__main__":
    main(sys.argv[1:])
