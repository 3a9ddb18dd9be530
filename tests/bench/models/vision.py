# SPDX-License-Identifier: Apache-2.0
"""Residual networks and MobileNetV2, as published; SGD with momentum."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional


def convolution(
    inward: int, outward: int, size: int, stride: int = 1, groups: int = 1
) -> nn.Module:
    """A convolution without bias, followed by batch normalisation."""
    return nn.Sequential(
        nn.Conv2d(inward, outward, size, stride, size // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outward),
    )


class Basic(nn.Module):
    """Residual block of two 3x3 convolutions (He et al., CVPR 2016)."""

    expansion = 1

    def __init__(self, inward: int, width: int, stride: int) -> None:
        super().__init__()
        self.first = convolution(inward, width, 3, stride)
        self.second = convolution(width, width, 3)
        self.act = nn.ReLU(inplace=True)
        self.shortcut = shortcut(inward, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        """x: [images, channels, height, width]."""
        return self.act(self.second(self.act(self.first(x))) + self.shortcut(x))


class Bottleneck(nn.Module):
    """Residual block of 1x1, 3x3 and 1x1 convolutions."""

    expansion = 4

    def __init__(self, inward: int, width: int, stride: int) -> None:
        super().__init__()
        self.first = convolution(inward, width, 1)
        self.second = convolution(width, width, 3, stride)
        self.third = convolution(width, 4 * width, 1)
        self.act = nn.ReLU(inplace=True)
        self.shortcut = shortcut(inward, 4 * width, stride)

    def forward(self, x: Tensor) -> Tensor:
        """x: [images, channels, height, width]."""
        y = self.act(self.second(self.act(self.first(x))))
        return self.act(self.third(y) + self.shortcut(x))


class Inverted(nn.Module):
    """MobileNetV2's inverted residual block (Sandler et al., CVPR 2018)."""

    def __init__(self, inward: int, outward: int, stride: int, widen: int) -> None:
        super().__init__()
        middle = inward * widen
        steps: list[nn.Module] = []
        if widen != 1:
            steps += [convolution(inward, middle, 1), nn.ReLU6(inplace=True)]
        steps += [convolution(middle, middle, 3, stride, groups=middle), nn.ReLU6(inplace=True)]
        self.body = nn.Sequential(*steps, convolution(middle, outward, 1))
        self.adds = stride == 1 and inward == outward

    def forward(self, x: Tensor) -> Tensor:
        """x: [images, channels, height, width]."""
        return x + self.body(x) if self.adds else self.body(x)


def shortcut(inward: int, outward: int, stride: int) -> nn.Module:
    """Return the identity if input and output have the same shape, else a 1x1 convolution."""
    if stride == 1 and inward == outward:
        return nn.Identity()
    return convolution(inward, outward, 1, stride)


def stages(
    block: type[Basic] | type[Bottleneck], depths: list[int], widths: list[int], inward: int
) -> tuple[nn.Sequential, int]:
    """Return (stages of blocks, final width); each stage but the first halves the resolution."""
    blocks: list[nn.Module] = []
    for number, (depth, width) in enumerate(zip(depths, widths, strict=True)):
        for at in range(depth):
            blocks.append(block(inward, width, 2 if number and not at else 1))
            inward = width * block.expansion
    return nn.Sequential(*blocks), inward


def classifier(body: nn.Module, width: int, classes: int) -> nn.Sequential:
    """Append two layers to a body: mean pooling over the image, then a linear layer."""
    return nn.Sequential(body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes))


def imagenet(block: type[Basic] | type[Bottleneck], depths: list[int]) -> nn.Module:
    """Build a residual network for images of 224 x 224."""
    stem = nn.Sequential(
        convolution(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, padding=1)
    )
    body, width = stages(block, depths, [64, 128, 256, 512], 64)
    return classifier(nn.Sequential(stem, body), width, 1000)


def trained(model: nn.Module, images: int, size: int, classes: int) -> Callable[[], Tensor]:
    """Return a training step on random images."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    batch, labels = torch.randn(images, 3, size, size), torch.randint(classes, (images,))

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = functional.cross_entropy(model(batch), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def resnet18() -> Callable[[], Tensor]:
    """ResNet-18, 8 images of 224 x 224."""
    return trained(imagenet(Basic, [2, 2, 2, 2]), 8, 224, 1000)


def resnet50() -> Callable[[], Tensor]:
    """ResNet-50, 8 images of 224 x 224."""
    return trained(imagenet(Bottleneck, [3, 4, 6, 3]), 8, 224, 1000)


def resnet32() -> Callable[[], Tensor]:
    """ResNet-32 for CIFAR, 128 images of 32 x 32."""
    body, width = stages(Basic, [5, 5, 5], [16, 32, 64], 16)
    stem = nn.Sequential(convolution(3, 16, 3), nn.ReLU(inplace=True))
    return trained(classifier(nn.Sequential(stem, body), width, 10), 128, 32, 10)


def mobilenet() -> Callable[[], Tensor]:
    """MobileNetV2, 8 images of 224 x 224."""
    blocks: list[nn.Module] = [convolution(3, 32, 3, 2), nn.ReLU6(inplace=True)]
    inward = 32
    for widen, outward, depth, stride in (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    ):
        for at in range(depth):
            blocks.append(Inverted(inward, outward, stride if not at else 1, widen))
            inward = outward
    blocks += [convolution(320, 1280, 1), nn.ReLU6(inplace=True)]
    return trained(classifier(nn.Sequential(*blocks), 1280, 1000), 8, 224, 1000)
