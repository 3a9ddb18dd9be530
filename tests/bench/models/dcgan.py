# SPDX-License-Identifier: Apache-2.0
"""DCGAN (Radford et al., ICLR 2016): two networks, each with its own optimizer."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

NOISE = 100
WIDTH = 64


def generator() -> nn.Module:
    """Build the generator: from noise to images of 64 x 64."""
    parts: list[nn.Module] = []
    inward = NOISE
    for at, outward in enumerate((8 * WIDTH, 4 * WIDTH, 2 * WIDTH, WIDTH)):
        parts += [
            nn.ConvTranspose2d(inward, outward, 4, 2 if at else 1, 1 if at else 0, bias=False),
            nn.BatchNorm2d(outward),
            nn.ReLU(inplace=True),
        ]
        inward = outward
    return nn.Sequential(*parts, nn.ConvTranspose2d(WIDTH, 3, 4, 2, 1, bias=False), nn.Tanh())


def discriminator() -> nn.Module:
    """Build the discriminator: from images of 64 x 64 to a logit."""
    parts: list[nn.Module] = [nn.Conv2d(3, WIDTH, 4, 2, 1, bias=False), nn.LeakyReLU(0.2)]
    for times in (1, 2, 4):
        parts += [
            nn.Conv2d(times * WIDTH, 2 * times * WIDTH, 4, 2, 1, bias=False),
            nn.BatchNorm2d(2 * times * WIDTH),
            nn.LeakyReLU(0.2),
        ]
    return nn.Sequential(*parts, nn.Conv2d(8 * WIDTH, 1, 4, bias=False), nn.Flatten())


def dcgan() -> Callable[[], Tensor]:
    """DCGAN, 32 images per step."""
    makes, judges = generator(), discriminator()
    maker, judge = (
        torch.optim.Adam(model.parameters(), lr=2e-4, betas=(0.5, 0.999))
        for model in (makes, judges)
    )
    images = torch.randn(32, 3, 64, 64)
    real, made = torch.ones(32, 1), torch.zeros(32, 1)

    def step() -> Tensor:
        judge.zero_grad(set_to_none=True)
        fake = makes(torch.randn(32, NOISE, 1, 1))
        loss = functional.binary_cross_entropy_with_logits(judges(images), real)
        loss = loss + functional.binary_cross_entropy_with_logits(judges(fake.detach()), made)
        loss.backward()
        judge.step()
        maker.zero_grad(set_to_none=True)
        fooled = functional.binary_cross_entropy_with_logits(judges(fake), real)
        fooled.backward()
        maker.step()
        return loss.detach() + fooled.detach()

    return step
