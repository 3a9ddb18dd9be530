# SPDX-License-Identifier: Apache-2.0
"""A transformer, trained by Adam on sequences whose length may differ between steps."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from tests.bench.lengths.sequence import SENTENCES, lengths

WORDS, WIDTH, LAYERS = 2000, 192, 4


class Transformer(nn.Module):
    """A small language model."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True)
        self.words = nn.Embedding(WORDS, WIDTH)
        self.body = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """tokens: [sentences, positions]; returns [sentences * positions, words]."""
        return self.head(self.body(self.words(tokens))).flatten(0, 1)


def transformer(name: str) -> Callable[[], torch.Tensor]:
    """Return the training step of a model. name: see lengths()."""
    model = Transformer()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    remaining = lengths(name)

    def step() -> torch.Tensor:
        tokens = torch.randint(WORDS, (SENTENCES, next(remaining)))
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(tokens), tokens.flatten())
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step
