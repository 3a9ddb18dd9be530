# SPDX-License-Identifier: Apache-2.0
"""Train one of the models: `python -m tests.bench.train MODEL (STEPS | STOP_FILE)`.

Prints each step's loss as an exact hexadecimal float. With STOP_FILE, trains until that
file exists.
"""

from __future__ import annotations

import argparse
import itertools
import os

import torch

from tests.bench.models import ALL_MODELS


def main() -> None:
    """Train one model in this process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=sorted(ALL_MODELS))
    parser.add_argument(
        "until", help="number of steps, or a file whose existence ends the training"
    )
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(1)
    step = ALL_MODELS[arguments.model]()
    steps = int(arguments.until) if arguments.until.isdigit() else None
    for _ in itertools.count() if steps is None else range(steps):
        if steps is None and os.path.exists(arguments.until):
            return
        print(float(step()).hex(), flush=True)


if __name__ == "__main__":
    main()
