# SPDX-License-Identifier: Apache-2.0
"""Measures the shim's overhead on training and writes build/bench/shim.json.

    python3 -m tests.bench.shim [MODEL ...] [--pairs N] [--resume]

Each model runs in six modes side by side: plain (twice), with tcmalloc, and with the shim dormant
(without a daemon), recording, or replaying an all-fast plan. In each round, every mode runs one
step. A ratio of two modes compares their steps of the same round. The modes are compared by the CPU
time of the whole process, with one torch thread. Then the model is managed on two emulated tiers to
measure its arena. Results are written after each model. Exit status 0 if every goal holds, 1 if
not, 2 if something could not be measured.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sentineld.base.errors import SentinelError
from tests.bench import results
from tests.bench.models import MODELS
from tests.bench.results import say
from tests.bench.shim import figures
from tests.bench.shim.measure import Settings, measure
from tests.bench.shim.stepped import ROOT

OUTPUT = ROOT / "build" / "bench" / "shim.json"
PAIRS = 20
PAIRS_MAX = 60


def write(output: Path, found: dict[str, Any], settings: Settings) -> dict[str, Any]:
    """Write the results of all models measured so far; return the summary."""
    summary = figures.summarise(found)
    results.write_models(output, summary, asdict(settings), found)
    return summary


def main() -> int:
    """Measure the models one by one; return the exit status."""
    parser = argparse.ArgumentParser(prog="python3 -m tests.bench.shim", description=__doc__)
    parser.add_argument("models", nargs="*", choices=[*MODELS, []])
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--pairs-max", type=int, default=PAIRS_MAX)
    parser.add_argument(
        "--resume", action="store_true", help="keep the models already in the output file"
    )
    parser.add_argument("--output", type=Path, default=OUTPUT)
    arguments = parser.parse_args()
    if arguments.pairs < 1:
        parser.error("--pairs must be at least 1")
    settings = Settings(arguments.pairs, max(arguments.pairs, arguments.pairs_max))
    try:
        found = (
            results.earlier_models(arguments.output, asdict(settings)) if arguments.resume else {}
        )
        summary = results.measure_models(
            arguments.models or MODELS,
            found,
            lambda model: measure(model, settings, say),
            lambda: write(arguments.output, found, settings),
        )
    except (RuntimeError, OSError, AssertionError, EOFError, SentinelError) as error:
        say(f"error: {error}")
        return 2
    print(figures.tables(summary))
    print(f"written to {arguments.output}")
    return results.exit_status(summary)


if __name__ == "__main__":
    sys.exit(main())
