# SPDX-License-Identifier: Apache-2.0
"""A training with DistributedDataParallel over gloo that runs until it is killed. It sleeps after
each step, so that it needs less CPU time."""

from __future__ import annotations

import time

import torch
from torch import nn

LAYERS = 6
WIDTH = 1024
SEQUENCES = 32
REST_S = 0.23


def main() -> None:
    torch.manual_seed(1)
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    inputs = torch.randn(SEQUENCES, WIDTH)
    while True:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        time.sleep(REST_S)


if __name__ == "__main__":
    main()
