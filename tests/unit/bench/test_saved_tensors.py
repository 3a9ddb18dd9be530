# SPDX-License-Identifier: Apache-2.0
"""Saving activations in files does not change the gradients, and the files are removed again."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tests.bench.saved_tensors import saved_in_files  # noqa: E402

ROWS = 1024  # activations of 1 MiB


def test_gradients_are_equal_and_files_are_removed(tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(3)), torch.nn.GELU())
    batch = torch.randn(ROWS, 256)
    gradients, files = [], []
    for hooks in (nullcontext(), saved_in_files(tmp_path)):
        model.zero_grad()
        with hooks:
            loss = model(batch).square().mean()
        files.append(len(list(tmp_path.iterdir())))
        loss.backward()
        gradients.append([weight.grad.clone() for weight in model.parameters()])
        del loss
    assert files[0] == 0
    assert files[1] >= 4, "the input of each layer is in a file"
    assert not list(tmp_path.iterdir())
    for plain, filed in zip(*gradients, strict=True):
        assert torch.equal(plain, filed)
