# SPDX-License-Identifier: Apache-2.0
"""Transformers with Adam, and recurrent networks with plain SGD; random tokens."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional


class Attention(nn.Module):
    """Multi-head self-attention, its scores kept for the backward pass."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.inward, self.outward = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """x: [sequences, positions, width]."""
        sequences, positions, width = x.shape
        parts = self.inward(x).view(sequences, positions, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        scores = query @ key.transpose(-1, -2) * (width // self.heads) ** -0.5
        if self.causal:
            later = torch.ones(positions, positions, dtype=torch.bool).triu(1)
            scores = scores.masked_fill(later, float("-inf"))
        mixed = functional.dropout(scores.softmax(-1), 0.1) @ value
        return self.outward(mixed.transpose(1, 2).reshape(sequences, positions, width))


class Block(nn.Module):
    """Attention and a feed-forward part, each beside a residual connection."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, causal)
        self.feed = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1)
        )
        self.before = causal  # GPT-2 normalises before each part, BERT after it

    def forward(self, x: Tensor) -> Tensor:
        """x: [sequences, positions, width]."""
        if self.before:
            x = x + self.attention(self.first(x))
            return x + self.feed(self.second(x))
        x = self.first(x + self.attention(x))
        return self.second(x + self.feed(x))


class Transformer(nn.Module):
    """Tokens to the logits of a token at each position; the embedding is shared."""

    def __init__(self, words: int, positions: int, width: int, blocks: int, causal: bool) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(positions, width)
        self.body = nn.Sequential(*(Block(width, 8, causal) for _ in range(blocks)))
        self.last = nn.LayerNorm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens: [sequences, positions]."""
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        return functional.linear(self.last(self.body(x)), self.words.weight)


class Recurrent(nn.Module):
    """An LSTM language model; `cells`: run step by step instead of as one operator."""

    def __init__(self, words: int, width: int, cells: bool) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(words, width), nn.Linear(width, words)
        self.cells = nn.ModuleList([nn.LSTMCell(width, width) for _ in range(2)]) if cells else None
        self.whole = None if cells else nn.LSTM(width, width, 2, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens: [sequences, positions]."""
        x = self.words(tokens)
        if self.whole is not None:
            return self.head(self.whole(x)[0])
        assert self.cells is not None
        states: list[tuple[Tensor, Tensor] | None] = [None] * len(self.cells)
        outward = []
        for position in range(x.shape[1]):
            y = x[:, position]
            for at, cell in enumerate(self.cells):
                states[at] = cell(y, states[at])
                y = states[at][0]
            outward.append(y)
        return self.head(torch.stack(outward, 1))


def trained(
    model: nn.Module, optimizer: torch.optim.Optimizer, words: int, sequences: int, positions: int
) -> Callable[[], Tensor]:
    """A step on random tokens."""
    tokens = torch.randint(words, (sequences, positions))
    labels = tokens.roll(-1, 1).flatten()

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = functional.cross_entropy(model(tokens).flatten(0, 1), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def bert() -> Callable[[], Tensor]:
    """BERT of 6 layers, 512 wide: 8 sequences of 128 tokens, masked-token head."""
    model = Transformer(8000, 128, 512, 6, causal=False)
    return trained(model, torch.optim.Adam(model.parameters(), lr=1e-4), 8000, 8, 128)


def gpt2() -> Callable[[], Tensor]:
    """GPT-2 of 6 layers, 512 wide: 4 sequences of 256 tokens."""
    model = Transformer(8000, 256, 512, 6, causal=True)
    return trained(model, torch.optim.Adam(model.parameters(), lr=1e-4), 8000, 4, 256)


def lstm() -> Callable[[], Tensor]:
    """Two layers of LSTM, 512 wide, 10,000 words: 20 sequences of 35 tokens."""
    model = Recurrent(10000, 512, cells=False)
    return trained(model, torch.optim.SGD(model.parameters(), lr=0.1), 10000, 20, 35)


def lstmcell() -> Callable[[], Tensor]:
    """The same network cell by cell."""
    model = Recurrent(10000, 512, cells=True)
    return trained(model, torch.optim.SGD(model.parameters(), lr=0.1), 10000, 20, 35)
