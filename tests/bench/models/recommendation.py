# SPDX-License-Identifier: Apache-2.0
"""A deep learning recommendation model (Naumov et al., 2019) with random clicks."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

TABLES, ROWS, WIDTH = 26, 800_000, 64
"""Number of embedding tables, and rows and columns of each: 5 GiB of parameters."""
DENSE = 13
SAMPLES = 512


def layers(*widths: int) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    parts: list[nn.Module] = []
    for inward, outward in pairwise(widths):
        parts += [nn.Linear(inward, outward), nn.ReLU()]
    return nn.Sequential(*parts[:-1])


class Recommender(nn.Module):
    """Computes logits from the embedded dense features and the products of all pairs of embeddings.

    The embedded dense features count as one of the embeddings.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(ROWS, WIDTH, mode="sum", sparse=True) for _ in range(TABLES)
        )
        self.bottom = layers(DENSE, 512, 256, WIDTH)
        pairs = (TABLES + 1) * TABLES // 2
        self.top = layers(WIDTH + pairs, 512, 256, 1)

    def forward(self, dense: Tensor, categories: Tensor) -> Tensor:
        """dense: [samples, DENSE]; categories: [TABLES, samples]. Returns logits [samples]."""
        first = self.bottom(dense)
        rows = [
            table(chosen[:, None]) for table, chosen in zip(self.tables, categories, strict=True)
        ]
        all_rows = torch.stack([first, *rows], 1)
        products = all_rows @ all_rows.transpose(1, 2)
        above = torch.triu_indices(TABLES + 1, TABLES + 1, 1)
        found: Tensor = self.top(torch.cat([first, products[:, above[0], above[1]]], 1))
        return found.flatten()


def dlrm() -> Callable[[], Tensor]:
    """26 tables of 800,000 rows, 512 samples per step, SGD.

    As in real traces, accesses are skewed: half of them go to a fifth of the rows. A row's number
    is ROWS times the product of two random numbers between 0 and 1.
    """
    model = Recommender()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> Tensor:
        dense, clicked = torch.randn(SAMPLES, DENSE), torch.rand(SAMPLES).round()
        popular = torch.rand(TABLES, SAMPLES) * torch.rand(TABLES, SAMPLES)
        optimizer.zero_grad(set_to_none=True)
        logits = model(dense, (popular * ROWS).long())
        loss = functional.binary_cross_entropy_with_logits(logits, clicked)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step
