# SPDX-License-Identifier: Apache-2.0
"""Train one of the nine models in turns of several steps: `python -m tests.bench.turns MODEL`.

Each line on standard input is a number of steps to run back to back. The answer
is a line of JSON with each step's usage (see usage.py) and exact loss. The process
exits at the end of the input.
"""

from __future__ import annotations

import argparse
import json
import sys

import torch

from tests.bench.models import MODELS
from tests.bench.usage import Meter, Usage


def main() -> None:
    """Train on request, with one thread."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=sorted(MODELS))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    step = MODELS[arguments.model]()
    meter = Meter()
    for line in sys.stdin:
        taken: list[tuple[Usage, str]] = []
        meter.begin()
        before = meter.read()
        for _ in range(int(line)):
            loss = float(step()).hex()
            now = meter.read()
            taken.append((now.since(before), loss))
            before = now
        print(json.dumps(taken), flush=True)


if __name__ == "__main__":
    main()
