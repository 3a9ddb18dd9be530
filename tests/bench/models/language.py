# SPDX-License-Identifier: Apache-2.0
"""Transformers with Adam, and recurrent networks with plain SGD; random weights and tokens.

BERT and GPT-2 come from the transformers package and are built from a config, without a download.
The package takes seconds to import, so only the functions that build these models import it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY = 8000
"""Vocabulary size of bert() and gpt2(); at width 512, each has 90 MiB of parameters. gpt2_medium()
has a larger vocabulary, but is trained with tokens below VOCABULARY, too."""


class Recurrent(nn.Module):
    """An LSTM language model. cells: whether it calls LSTM cells for each position instead of one
    LSTM operator."""

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
    logits: Callable[[Tensor], Tensor],
    optimizer: torch.optim.Optimizer,
    words: int,
    sequences: int,
    positions: int,
) -> Callable[[], Tensor]:
    """Return a training step on random tokens.

    logits: maps tokens [sequences, positions] to [sequences, positions, words].
    """
    tokens = torch.randint(words, (sequences, positions))
    labels = tokens.roll(-1, 1).flatten()

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = functional.cross_entropy(logits(tokens).flatten(0, 1), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def imported() -> Any:
    """Import the transformers package. Raises SystemExit if it is not installed."""
    try:
        import transformers
    except ImportError:
        raise SystemExit(
            "error: bert and gpt2 need transformers: pip install -e '.[trainer]'"
        ) from None
    return transformers


def by_adam(model: Any, batch: int, length: int) -> Callable[[], Tensor]:
    """Return a training step of a transformers model, with Adam."""
    model.train()
    adam = torch.optim.Adam(model.parameters(), lr=1e-4)
    return trained(lambda tokens: model(tokens).logits, adam, VOCABULARY, batch, length)


def bert() -> Callable[[], Tensor]:
    """BERT of 6 layers, 512 wide: 8 sequences of 128 tokens, masked-token head."""
    transformers = imported()
    model = transformers.BertForMaskedLM(
        transformers.BertConfig(
            vocab_size=VOCABULARY,
            hidden_size=512,
            num_hidden_layers=6,
            num_attention_heads=8,
            intermediate_size=2048,
            max_position_embeddings=128,
        )
    )
    return by_adam(model, 8, 128)


def gpt2_medium() -> Callable[[], Tensor]:
    """GPT-2 medium (355 M parameters) as published, with Adam: 1 sequence of 256 tokens."""
    transformers = imported()
    config = transformers.GPT2Config(n_embd=1024, n_layer=24, n_head=16, use_cache=False)
    model = transformers.GPT2LMHeadModel(config)
    return by_adam(model, 1, 256)


def gpt2() -> Callable[[], Tensor]:
    """GPT-2 of 6 layers, 512 wide: 4 sequences of 256 tokens."""
    transformers = imported()
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=VOCABULARY,
            n_positions=256,
            n_embd=512,
            n_layer=6,
            n_head=8,
            use_cache=False,
            bos_token_id=0,
            eos_token_id=0,
        )
    )
    return by_adam(model, 4, 256)


def lstm() -> Callable[[], Tensor]:
    """Two layers of LSTM, 512 wide, a vocabulary of 10,000 words: 20 sequences of 35 tokens."""
    model = Recurrent(10000, 512, cells=False)
    return trained(model, torch.optim.SGD(model.parameters(), lr=0.1), 10000, 20, 35)


def lstmcell() -> Callable[[], Tensor]:
    """The network of lstm(), computed with LSTM cells instead of one LSTM operator."""
    model = Recurrent(10000, 512, cells=True)
    return trained(model, torch.optim.SGD(model.parameters(), lr=0.1), 10000, 20, 35)
