# SPDX-License-Identifier: Apache-2.0
"""Trains on several ranks, over gloo: job_train.py RANK STEP FILE STEPS.

The training has STEPS steps. Rank RANK waits in the forward pass of step STEP, counted from 0,
until FILE exists.
"""

from __future__ import annotations

import os
import sys
import time

import torch


class Held(torch.nn.Module):
    """A layer whose forward pass waits, in one step, until a file exists."""

    def __init__(self, step: int, file: str) -> None:
        super().__init__()
        self._left = step
        self._file = file

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        while self._left == 0 and not os.path.exists(self._file):
            time.sleep(0.01)
        self._left -= 1
        return values


def main() -> None:
    rank, step, file, steps = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    torch.manual_seed(1)
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    own = torch.distributed.get_rank()
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 64), Held(step if own == rank else -1, file), torch.nn.Linear(64, 64)
    )
    trained = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(trained.parameters(), 0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        trained(torch.ones(64, 64)).square().mean().backward()
        optimizer.step()
    # Print the sum of the parameters, which are the same on all ranks after the last step.
    print(own, sum(part.double().sum().item() for part in model.parameters()).hex(), flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
