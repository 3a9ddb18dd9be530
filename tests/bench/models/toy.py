# SPDX-License-Identifier: Apache-2.0
"""A model for tests of the benchmarks: its step takes some milliseconds."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional


def perceptron() -> Callable[[], Tensor]:
    """Eight linear layers, 512 wide, trained by Adam on 512 random rows: 50 MiB of tensors."""
    layers = [module for _ in range(8) for module in (nn.Linear(512, 512), nn.Sigmoid())]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    rows, goal = torch.randn(512, 512), torch.rand(512, 512)

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = functional.mse_loss(model(rows), goal)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step
