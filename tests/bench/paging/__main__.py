# SPDX-License-Identifier: Apache-2.0
"""Measures trainings in less memory than they need and writes build/bench/paging.json.

    python3 -m tests.bench.paging [MODEL ...] [--fractions F ...] [--contestants NAME ...]
                                  [--rivals] [--rounds N] [--folder DIR] [--resume]

Each contestant trains the model in a memory cgroup of its own. Every cgroup except that of the
contestant "ram" has a limit. The limit leaves room for a fraction F of the tensors' peak and for
all other memory of the process. In each round, every contestant has one turn: it runs some
unmeasured steps and then some measured ones, while the others pause. The contestants:

    ram              no limit
    swap             Linux swap on the disk, with the kernel's default settings
    swap-tuned       Linux swap on the disk, with the fastest of several settings
    zram             Linux swap on zram; its compressed pages do not count towards the limit
    saved-tensors    PyTorch's hooks write activations to files; Linux swap holds other pages
    auto, sentinel   sentineld on paged tiers, without swap

With --rivals, policies of other systems compete, too, if sentineld can run them on paged tiers.

The bound is the step time in RAM plus the least time that paging adds to a step under any policy,
according to the timing model. Each training uses one torch thread; nothing is pinned to a CPU. The
benchmark needs root. It sets up swap itself, so no swap may be active when it starts. Exit status 0
if every goal holds, 1 if not, 2 if something could not be measured.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from sentineld.base.errors import SentinelError
from tests.bench import results
from tests.bench.memory_settings import free_pages_kept
from tests.bench.models import LARGE_MODELS, MODELS
from tests.bench.paging import figures
from tests.bench.paging.measure import measure
from tests.bench.paging.needs import needs_of
from tests.bench.paging.plot import draw
from tests.bench.paging.race import Settings
from tests.bench.paging.swap import require_no_swap
from tests.bench.results import say
from tests.bench.traces import ROOT

BENCH = ROOT / "build" / "bench"
OUTPUT = BENCH / "paging.json"
FRACTIONS = (0.4, 0.2)
ROUNDS, SETTLE, STEPS = 5, 1, 2
FOR_LARGE = (figures.RAM, "swap", *figures.MANAGED)
"""Contestants for large models: only one of them uses swap. Between its turns, a training under
swap is entirely in memory, so "ram" and all four contestants that use swap would together need five
times the model's size."""


def arguments_of(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parse the command line."""
    parser.add_argument("models", nargs="*", choices=[*MODELS, *LARGE_MODELS, []])
    parser.add_argument("--fractions", nargs="+", type=float, default=list(FRACTIONS))
    parser.add_argument("--contestants", nargs="+", choices=(*figures.CONTESTANTS, *figures.RIVALS))
    parser.add_argument("--rivals", action="store_true", help="add the policies of other systems")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--settle", type=int, default=SETTLE, help="unmeasured steps of each turn")
    parser.add_argument("--steps", type=int, default=STEPS, help="measured steps of each turn")
    parser.add_argument(
        "--folder", type=Path, default=BENCH / "paging", help="folder on the disk used for paging"
    )
    parser.add_argument(
        "--resume", action="store_true", help="keep the models already in the output file"
    )
    parser.add_argument("--output", type=Path, default=OUTPUT)
    arguments = parser.parse_args()
    if arguments.rounds < 1 or arguments.settle < 0 or arguments.steps < 1:
        parser.error("--rounds and --steps must be at least 1 and --settle at least 0")
    if not all(0 < fraction < 1 for fraction in arguments.fractions):
        parser.error("--fractions must be between 0 and 1")
    return arguments


def contestants_of(model: str, chosen: list[str] | None, rivals: bool) -> list[str]:
    """The contestants for a model; "ram" is always one of them."""
    default = FOR_LARGE if model in LARGE_MODELS else figures.CONTESTANTS
    added = figures.RIVALS if rivals else ()
    return list(dict.fromkeys([figures.RAM, *(chosen or default), *added]))


def measured(arguments: argparse.Namespace, common: dict[str, Any]) -> dict[str, Any]:
    """Measure the models one by one; return the summary. Raises RuntimeError, OSError or
    SentinelError if a model cannot be measured."""
    folder = arguments.folder
    folder.mkdir(parents=True, exist_ok=True)
    settings = Settings(folder, arguments.rounds, arguments.settle, arguments.steps)
    found = results.earlier_models(arguments.output, common) if arguments.resume else {}

    def measure_model(model: str) -> dict[str, Any]:
        contestants = contestants_of(model, arguments.contestants, arguments.rivals)
        needs = needs_of(model, folder)
        return {
            str(fraction): measure(model, needs, fraction, contestants, settings, say)
            for fraction in arguments.fractions
        }

    def write() -> dict[str, Any]:
        summary = figures.summarise(found)
        results.write_models(arguments.output, summary, common, found)
        return summary

    models = arguments.models or [*MODELS, *LARGE_MODELS]
    return results.measure_models(models, found, measure_model, write)


def main() -> int:
    """Measure the models, write the results and draw the plots; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python3 -m tests.bench.paging",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    arguments = arguments_of(parser)
    common = {
        "fractions": arguments.fractions,
        "contestants": arguments.contestants,
        "rivals": arguments.rivals,
        "energy": True,
        "rounds": arguments.rounds,
        "settle": arguments.settle,
        "steps": arguments.steps,
    }
    try:
        require_no_swap()
        with free_pages_kept():
            summary = measured(arguments, common)
        pictures = draw(summary["rows"], arguments.output.parent)
    except (RuntimeError, OSError, SentinelError) as error:
        say(f"error: {error}")
        return 2
    print(figures.text(summary))
    print(f"written to {', '.join(map(str, [arguments.output, *pictures]))}")
    return results.exit_status(summary)


if __name__ == "__main__":
    sys.exit(main())
