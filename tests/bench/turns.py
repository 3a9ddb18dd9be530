# SPDX-License-Identifier: Apache-2.0
"""Train one of the models in turns of several steps: `python -m tests.bench.turns MODEL`.

Each line on standard input is a number of steps to run back to back. The answer
is a line of JSON with each step's usage (see usage.py) and exact loss. The process
exits at the end of the input.
"""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import nullcontext
from pathlib import Path

import torch

from tests.bench.models import ALL_MODELS
from tests.bench.saved_tensors import saved_in_files
from tests.bench.usage import Meter, Usage


def main() -> None:
    """Train on request, with one thread."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=sorted(ALL_MODELS))
    parser.add_argument(
        "--saved-tensors", type=Path, metavar="DIR", help="keep activations in files in DIR"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    step = ALL_MODELS[arguments.model]()
    folder = arguments.saved_tensors
    hooks = nullcontext() if folder is None else saved_in_files(folder)
    meter = Meter()
    for line in sys.stdin:
        taken: list[tuple[Usage, str]] = []
        meter.begin()
        before = meter.read()
        for _ in range(int(line)):
            with hooks:
                loss = float(step()).hex()
            now = meter.read()
            taken.append((now.since(before), loss))
            before = now
        print(json.dumps(taken), flush=True)


if __name__ == "__main__":
    main()
