# SPDX-License-Identifier: Apache-2.0
"""A training script without any reference to the shim: train.py MODEL (STEPS | STOP_FILE).

Prints each step's loss as a hexadecimal float. With STOP_FILE, trains until that file exists.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import time
from collections.abc import Iterator

import torch
from torch import nn


class Cnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16))
        self.second = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16))
        self.act = nn.ReLU(inplace=True)
        self.head = nn.Linear(16 * 16 * 16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.act(self.first(x))
        y = self.act(self.second(y) + y)
        return self.head(nn.functional.max_pool2d(y, 2).flatten(1))

    @staticmethod
    def batch(size: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(size, 3, 32, 32), torch.randint(10, (size,))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(512, 64)
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.1, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(64, 512)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.embed(x))).flatten(0, 1)

    @staticmethod
    def batch(size: int) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = torch.randint(512, (size, 24))
        return tokens, tokens.roll(1, 1).flatten()


class Perceptron(nn.Module):
    """A model whose memory consists nearly entirely of parameters and Adam's state."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(512, 768), nn.ReLU(), nn.Linear(768, 768), nn.ReLU(), nn.Linear(768, 10)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)

    @staticmethod
    def batch(size: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(size, 512), torch.randint(10, (size,))


class Large(Perceptron):
    """A model of 300 MiB: parameters, gradients and Adam's state. The inner layers take 288 MiB."""

    def __init__(self) -> None:
        super().__init__()
        inner = [layer for _ in range(8) for layer in (nn.Linear(1536, 1536), nn.ReLU())]
        self.body = nn.Sequential(nn.Linear(512, 1536), *inner, nn.Linear(1536, 10))


KINDS = {"cnn": Cnn, "transformer": Transformer, "perceptron": Perceptron, "large": Large}


class Batches(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Fixed samples, computed from one tensor. Forked workers inherit this tensor."""

    def __init__(self) -> None:
        self.data = torch.randn(64, 3, 32, 32)

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        image = self.data[index] * 2
        scratch = torch.ones(64 * 1024) * index  # a large tensor allocated in the worker
        return image + scratch[0] * 0, torch.tensor(index % 10)


def batches(args: argparse.Namespace, model: type[nn.Module]) -> Iterator[list[torch.Tensor]]:
    """Yield batches without end, according to the options."""
    if args.workers:
        data = Batches()
        while True:
            # New workers are forked for each pass over the data.
            yield from torch.utils.data.DataLoader(data, batch_size=8, num_workers=args.workers)
    sizes = random.Random(1)
    fixed = list(model.batch(8)) if args.fixed else []  # type: ignore[operator]
    for step in itertools.count():
        if args.fixed:
            yield fixed
            continue
        if args.sizes:
            yield list(model.batch(sizes.choice(args.sizes)))  # type: ignore[operator]
            continue
        varied = step // args.turns % 2 if args.turns else args.vary and step % 5 == 4
        yield list(model.batch(6 if varied else 8))  # type: ignore[operator]


def slow_down(model: nn.Module, pause_s: float) -> None:
    """Sleep after each layer's forward pass, after the gradient of each layer's output has been
    computed, and before the last operator of each parameter's update."""

    def pause(*_: object) -> None:
        time.sleep(pause_s)

    def after_forward(_: nn.Module, __: object, output: torch.Tensor) -> None:
        pause()
        if output.requires_grad:
            output.register_hook(pause)

    for module in model.modules():
        if not list(module.children()):
            module.register_forward_hook(after_forward)
    update = torch.Tensor.addcdiv_

    def updated(*operands: object, **named: object) -> object:
        pause()
        return update(*operands, **named)

    torch.Tensor.addcdiv_ = updated  # the last operator of Adam's update


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=sorted(KINDS))
    parser.add_argument("until")
    parser.add_argument("--vary", action="store_true", help="every fifth batch is smaller")
    parser.add_argument(
        "--sizes",
        type=int,
        nargs="+",
        help="batch sizes; each step uses one of them, chosen at random",
    )
    parser.add_argument("--fixed", action="store_true", help="the same batch in every step")
    parser.add_argument(
        "--turns",
        type=int,
        default=0,
        help="number of steps after which the batch size changes from 8 to 6, or from 6 to 8",
    )
    parser.add_argument("--threads-at", type=int, default=0, help="first step with 2 threads")
    parser.add_argument("--keep", action="store_true", help="keep outputs of former steps alive")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--pause", type=float, default=0.0, help="ms to sleep after each operation")
    parser.add_argument("--rest", type=float, default=0.0, help="ms to sleep after each step")
    args = parser.parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(1)
    kind = KINDS[args.model]
    model = kind()
    if args.pause:
        slow_down(model, args.pause / 1000)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    kept: list[torch.Tensor] = []
    for step, (inputs, targets) in enumerate(batches(args, kind)):
        if args.until.isdigit() and step >= int(args.until):
            break
        if not args.until.isdigit() and os.path.exists(args.until):
            break
        if args.threads_at and step == args.threads_at:
            torch.set_num_threads(2)
        optimizer.zero_grad()
        output = model(inputs)
        loss = nn.functional.cross_entropy(output, targets)
        loss.backward()
        optimizer.step()
        if args.keep:
            kept = [*kept[-2:], output]
        if args.fixed:
            # Without this statement, the output is freed after the next step's output is allocated.
            del output
        print(loss.item().hex(), *(old.sum().item().hex() for old in kept), flush=True)
        if args.rest:
            time.sleep(args.rest / 1000)


if __name__ == "__main__":
    main()
