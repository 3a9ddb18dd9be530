# SPDX-License-Identifier: Apache-2.0
"""Train one of the nine models a step at a time, as told: `stepper.py MODEL`.

Each line on standard input asks for a step; each step is answered by a line of
JSON: what the process has used so far. The end of the input ends it.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys

import torch

from tests.bench.models import MODELS


def used(loss: str) -> dict[str, object]:
    """CPU time in seconds and minor page faults since the process began."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "minor_faults": usage.ru_minflt,
        "loss": loss,
    }


def main() -> None:
    """One process, one model, one thread."""
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
