# SPDX-License-Identifier: Apache-2.0
"""Which saved tensors are found to be recomputable."""

from __future__ import annotations

import torch
from torch import nn

from tests.bench.recomputable import classify

SIZE = 4 * 8 * 16 * 16 * 4
"""Bytes of each activation."""


def test_a_chain_of_normalization_and_relu_is_computed_again_from_the_saved_input() -> None:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(8)
    net = nn.Sequential(
        nn.Conv2d(8, 8, 3, padding=1), norm, nn.ReLU(inplace=True), nn.Conv2d(8, 8, 1)
    )
    batch = torch.randn(4, 8, 16, 16)
    found = classify(lambda: net(batch))
    # The saved tensors are the batch, the output of the first convolution and that of ReLU, and the
    # mean and inverse standard deviation of each of the eight channels. Only the output of ReLU can
    # be dropped.
    assert found.recomputable_bytes == SIZE
    assert 3 * SIZE <= found.saved_bytes <= 3 * SIZE + 1024
    assert not found.unequal
    assert norm.num_batches_tracked == 1


def test_outputs_of_other_operators_are_not() -> None:
    torch.manual_seed(0)
    batch = torch.randn(64, 64, requires_grad=True)
    found = classify(lambda: torch.softmax(batch * 2.0, 1).exp())
    assert found.recomputable_bytes == 0
    assert any("SoftmaxBackward0" in text for text in found.other_bytes)
