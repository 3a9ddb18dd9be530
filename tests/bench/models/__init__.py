# SPDX-License-Identifier: Apache-2.0
"""The benchmarks' nine models, with random weights and data.

Each entry of MODELS builds a model and returns its step: a function that runs one
training step and returns the loss. Sizes are chosen so that a step takes one to two
seconds on one core and its tensors have a peak of 0.2 to 1 GiB. LARGE_MODELS need several
GiB; only bench-paging trains them. TOY_MODELS are for tests of the benchmarks.
VARYING_MODELS are trained on sequences whose length may differ between steps.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from tests.bench.lengths.sequence import NAMES
from tests.bench.models import dcgan, language, recommendation, toy, varying, vision

Step = Callable[[], torch.Tensor]

MODELS: dict[str, Callable[[], Step]] = {
    "resnet18": vision.resnet18,
    "resnet32": vision.resnet32,
    "resnet50": vision.resnet50,
    "mobilenet": vision.mobilenet,
    "bert": language.bert,
    "gpt2": language.gpt2,
    "lstm": language.lstm,
    "lstmcell": language.lstmcell,
    "dcgan": dcgan.dcgan,
}

LARGE_MODELS: dict[str, Callable[[], Step]] = {
    "gpt2-medium": language.gpt2_medium,
    "dlrm": recommendation.dlrm,
}

TOY_MODELS: dict[str, Callable[[], Step]] = {
    "perceptron": toy.perceptron,
}

VARYING_MODELS: dict[str, Callable[[], Step]] = {
    f"transformer-{name}": partial(varying.transformer, name) for name in NAMES
}

ALL_MODELS = MODELS | LARGE_MODELS | TOY_MODELS | VARYING_MODELS
