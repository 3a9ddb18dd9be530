# SPDX-License-Identifier: Apache-2.0
"""Train one of the nine models, one step per request: `python -m tests.bench.stepper MODEL`.

Each line on standard input requests a step. The answer is a line of JSON: the
process's resource usage so far, and the step's loss. Before the first request, the
process prints such a line with an empty loss. It exits at the end of the input.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys

import torch

from tests.bench.models import MODELS


def used(loss: str) -> dict[str, object]:
    """Return CPU seconds and minor page faults since the process started, and the loss."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "minor_faults": usage.ru_minflt,
        "loss": loss,
    }


def main() -> None:
    """Train on request, with one thread."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=sorted(MODELS))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    step = MODELS[arguments.model]()
    print(json.dumps(used("")), flush=True)
    for _ in sys.stdin:
        print(json.dumps(used(float(step()).hex())), flush=True)


if __name__ == "__main__":
    main()
