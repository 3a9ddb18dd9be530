# SPDX-License-Identifier: Apache-2.0
"""A training that places tensors: place_train.py MODEL (STEPS | STOP_FILE) [--later FILE].

The perceptron's layers 0 and 2 have parameters of 1.5 and 2.25 MiB. Layer 0 is placed on the fast
tier, layer 2 on the slow tier. In each step, some activations are born in a context that places
them on the slow tier, and others in a context that places them on the fast tier. Once FILE exists,
layer 2 is placed on the fast tier, and layer 0 is no longer placed. Prints each step's loss as a
hexadecimal float. The losses do not depend on the placements.
"""

from __future__ import annotations

import argparse
import itertools
import os
import time

import torch
from torch import nn

import sentineld.shim  # after torch, so that this line does not load the shim
from tests.integration.shim.train import Perceptron

SLOW_ROWS, FAST_ROWS = 96, 160
"""Rows of the activations that are born in the two contexts; no other tensors have their sizes."""
COLUMNS = 1024


def extra(inputs: torch.Tensor) -> torch.Tensor:
    """Return a term of the loss that is computed from the placed activations."""
    with sentineld.shim.placing("slow"):
        slow = inputs.mean() * torch.ones(SLOW_ROWS, COLUMNS)
    with sentineld.shim.placing("fast"):
        fast = slow.sum() * torch.ones(FAST_ROWS, COLUMNS)
    return fast.mean() * 1e-6


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=["perceptron"])
    parser.add_argument("until")
    parser.add_argument("--later", default="", help="once this file exists, the placements change")
    parser.add_argument("--rest", type=float, default=0.0, help="ms to sleep after each step")
    args = parser.parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(1)
    model = Perceptron()
    first, second = model.body[0], model.body[2]
    sentineld.shim.place(first, "fast")
    sentineld.shim.place(second.weight, "slow")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    changed = False
    for step in itertools.count():
        if step >= int(args.until) if args.until.isdigit() else os.path.exists(args.until):
            break
        if not changed and args.later and os.path.exists(args.later):
            sentineld.shim.place(first, "auto")
            sentineld.shim.place(second, "fast")
            changed = True
        inputs, targets = model.batch(8)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets) + extra(inputs)
        loss.backward()
        optimizer.step()
        print(loss.item().hex(), flush=True)
        time.sleep(args.rest / 1000)


if __name__ == "__main__":
    main()
