# SPDX-License-Identifier: Apache-2.0
"""Many kinds of training, written without regard to the shim: compat.py KIND (STEPS | STOP_FILE).

Prints each step's loss as a hexadecimal float. With STOP_FILE, trains until that file exists.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import itertools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils import checkpoint

WIDTH = 256
FORKED_GENERATIONS = 4
LOSSES = Iterator[Tensor]


class Residual(nn.Module):
    """Residual blocks. around: called with each block and its input, in place of the block."""

    def __init__(self, around: Callable[[nn.Module, Tensor], Tensor] | None = None) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))
            for _ in range(3)
        )
        self.head = nn.Linear(WIDTH, 16)
        self._around = around

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + (self._around(block, x) if self._around else block(x))
        return self.head(x)


def batch(size: int = 32) -> tuple[Tensor, Tensor]:
    return torch.randn(size, WIDTH), torch.randint(16, (size,))


def loss_of(model: nn.Module, size: int = 32) -> Tensor:
    inputs, targets = batch(size)
    return functional.cross_entropy(model(inputs).float(), targets)


def adam(model: nn.Module, **options: bool) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=1e-3, **options)


def plainly(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss_of_step: Callable[[nn.Module], Tensor] = loss_of,
) -> LOSSES:
    while True:
        optimizer.zero_grad()
        loss = loss_of_step(model)
        loss.backward()
        optimizer.step()
        yield loss


def checkpointed(reentrant: bool) -> LOSSES:
    def around(block: nn.Module, x: Tensor) -> Tensor:
        again: Tensor = checkpoint.checkpoint(block, x, use_reentrant=reentrant)
        return again

    model = Residual(around)
    return plainly(model, adam(model))


def autocast() -> LOSSES:
    model = Residual()
    optimizer = adam(model)
    while True:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(model)
        loss.backward()
        optimizer.step()
        yield loss


def accumulated() -> LOSSES:
    model = Residual()
    optimizer = adam(model)
    while True:
        for _ in range(3):
            loss = loss_of(model, 8) / 3
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        yield loss


def created() -> LOSSES:
    """Each step creates three modules, at most two of which exist at the same time."""

    def loss_of_created(model: nn.Module) -> Tensor:
        inputs, targets = batch()
        outputs = model(inputs)
        smooth = nn.CrossEntropyLoss(label_smoothing=0.1)
        loss = nn.CrossEntropyLoss()(outputs, targets) + smooth(outputs, targets)
        return loss + nn.CrossEntropyLoss()(outputs.square(), targets)

    model = Residual()
    return plainly(model, adam(model), loss_of_created)


def gan() -> LOSSES:
    generator, judge = nn.Sequential(nn.Linear(64, WIDTH), nn.Tanh()), Residual()
    for_generator, for_judge = adam(generator), adam(judge)
    while True:
        made = generator(torch.randn(32, 64))
        for_judge.zero_grad()
        real, _ = batch()
        judged = judge(made.detach()).mean() - judge(real).mean()
        judged.backward()
        for_judge.step()
        for_generator.zero_grad()
        fooled = -judge(made).mean()
        fooled.backward()
        for_generator.step()
        yield judged + fooled


def lbfgs() -> LOSSES:
    model = Residual()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4, history_size=8)
    while True:
        inputs, targets = batch()

        def closure(inputs: Tensor = inputs, targets: Tensor = targets) -> Tensor:
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(inputs), targets)
            loss.backward()
            return loss

        yield torch.as_tensor(optimizer.step(closure))


def evaluated() -> LOSSES:
    model = Residual()
    steps = plainly(model, adam(model))
    for step in itertools.count():
        yield next(steps)
        if step % 4 == 3:
            model.eval()
            with torch.no_grad():
                yield loss_of(model, 64)
            model.train()


def lengths() -> LOSSES:
    model = nn.LSTM(64, 128, batch_first=True)
    optimizer = adam(model)
    for step in itertools.count():
        optimizer.zero_grad()
        output, _ = model(torch.randn(8, (12, 20, 16)[step % 3], 64))
        loss = output.square().mean()
        loss.backward()
        optimizer.step()
        yield loss


def interrupted() -> LOSSES:
    model = Residual()
    optimizer = adam(model)

    def fail(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        raise InterruptedError

    for step in itertools.count():
        hook = model.head.register_forward_pre_hook(fail) if step % 5 == 4 else None
        with suppress(InterruptedError):
            optimizer.zero_grad()
            loss = loss_of(model)
            loss.backward()
            optimizer.step()
        if hook is not None:
            hook.remove()
        yield loss


def kept() -> LOSSES:
    model = Residual()
    optimizer = adam(model)
    losses: list[Tensor] = []
    gradients: list[Tensor] = []
    while True:
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        optimizer.step()
        losses = [*losses[-3:], loss]
        gradients = [*gradients[-2:], *(p.grad for p in model.head.parameters())]
        yield torch.stack(losses).sum().detach() + sum(g.sum() for g in gradients)


def compiled(backend: str) -> LOSSES:
    torch._dynamo.config.error_on_recompile = True
    model = torch.compile(Residual(), backend=backend)
    return plainly(model, adam(model))


def fused() -> LOSSES:
    model = Residual()
    return plainly(model, adam(model, fused=True))


def fork_tree(model: nn.Module, generations: int) -> None:
    """Fork a binary tree of processes; each computes a loss with the inherited model.

    There is no backward pass, because torch 2.6 refuses to run one after a fork.

    Raises ChildProcessError if a child fails.
    """
    children = []
    for _ in range(2):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                with torch.no_grad():
                    loss_of(model)
                if generations > 1:
                    fork_tree(model, generations - 1)
                status = 0
            finally:
                os._exit(status)
        children.append(child)
    for child in children:
        _, status = os.waitpid(child, 0)
        if status:
            raise ChildProcessError(f"a child ended with status {status}")


def forks() -> LOSSES:
    model = Residual()
    steps = plainly(model, adam(model))
    for step in itertools.count():
        yield next(steps)
        if step % 4 == 3:
            fork_tree(model, FORKED_GENERATIONS)


def by_hand() -> LOSSES:
    model = Residual()
    while True:
        loss = loss_of(model)
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.01 * parameter.grad
                parameter.grad = None
        yield loss


def replaced() -> LOSSES:
    """From the fifth step on, the allocator of the library $OTHER_ALLOCATOR serves all tensors."""
    model = Residual()
    steps = plainly(model, adam(model))
    for step in itertools.count():
        if step == 4:
            ctypes.CDLL(os.environ["OTHER_ALLOCATOR"]).replace_allocator()
        yield next(steps)


def profiled() -> LOSSES:
    """The script has a profiler of its own. In each cycle of six steps, the profiler idles for
    three steps, prepares in one step and records two steps."""

    def check(profiler: torch.profiler.profile) -> None:
        assert sum(event.name == "aten::gelu" for event in profiler.events()) == 2 * 3

    model = Residual()
    steps = plainly(model, adam(model))
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        schedule=torch.profiler.schedule(wait=3, warmup=1, active=2),
        on_trace_ready=check,
    ) as profiler:
        while True:
            yield next(steps)
            profiler.step()


def parallel() -> LOSSES:
    torch.distributed.init_process_group("gloo")
    torch.manual_seed(torch.distributed.get_rank())
    model = nn.parallel.DistributedDataParallel(Residual())
    return plainly(model, adam(model))


KINDS: dict[str, Callable[[], LOSSES]] = {
    "checkpoint": lambda: checkpointed(reentrant=False),
    "checkpoint-reentrant": lambda: checkpointed(reentrant=True),
    "autocast": autocast,
    "accumulate": accumulated,
    "created": created,
    "gan": gan,
    "lbfgs": lbfgs,
    "evaluate": evaluated,
    "lengths": lengths,
    "interrupt": interrupted,
    "keep": kept,
    "compile": lambda: compiled("inductor"),
    "compile-aot": lambda: compiled("aot_eager"),
    "fused": fused,
    "forks": forks,
    "by-hand": by_hand,
    "replace": replaced,
    "profile": profiled,
    "parallel": parallel,
}


def reached(until: str, step: int) -> bool:
    """Whether to stop before this step; the answer is the same on all ranks."""
    stop = torch.tensor(step >= int(until) if until.isdigit() else os.path.exists(until)).int()
    if torch.distributed.is_initialized():
        torch.distributed.all_reduce(stop, torch.distributed.ReduceOp.MAX)
    return bool(stop)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("until")
    arguments = parser.parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(1)
    losses = KINDS[arguments.kind]()
    for step in itertools.count():
        if reached(arguments.until, step):
            break
        # Write a line and its newline in one call, because the ranks share the pipe. print() would
        # write them in two calls, because torchrun makes Python's output unbuffered.
        sys.stdout.write(f"{next(losses).item().hex()}\n")
        sys.stdout.flush()
    if torch.distributed.is_initialized():
        # Without these lines, a gloo thread may request the GIL after Python's finalization. Python
        # then unwinds the thread, which aborts the process. 5 of 20 trainings without the shim
        # aborted in this way (PyTorch's pull request 179291). The threads end when the last
        # reference to their process group is gone; the model holds such a reference.
        del losses
        gc.collect()
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
