# SPDX-License-Identifier: Apache-2.0
"""Measures trainings on emulated tiers and writes build/bench/train.json.

    python3 -m tests.bench.training [MODEL ...] [--rounds N] [--resume]

Each model is trained under all policies side by side, with one process and one daemon per policy.
The budget is 20 % of the peak. In each round, every training runs some unmeasured steps and then
one measured step. While a training pauses for the turns of the others, its daemon goes on moving
its pages; the unmeasured steps undo the effects of these moves. The trainings share one CPU, with
one torch thread each; daemons and this program run on the other CPUs. During the run, huge pages of
64 KiB are enabled if the kernel has them, and fewer free pages are reported to a hypervisor (see
memory_settings.py). Exit status 0 if every goal holds, 1 if not, 2 if something could not be
measured.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from sentineld.base.errors import SentinelError
from sentineld.host.presets import PRESETS
from sentineld.policies.registry import names
from tests.bench import results
from tests.bench.memory_settings import free_pages_kept, huge_sizes
from tests.bench.models import MODELS
from tests.bench.results import say
from tests.bench.traces import ROOT
from tests.bench.training import figures
from tests.bench.training.measure import Settings, measure

OUTPUT = ROOT / "build" / "bench" / "train.json"
POLICIES = (figures.ALL_FAST, figures.ALL_SLOW, "first-touch", "static", "sentinel", figures.OURS)
ROUNDS = 10
SETTLE = 1


def arguments_of(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parse the command line."""
    available = [name for name in POLICIES if name in names()]
    parser.add_argument("models", nargs="*", choices=[*MODELS, []])
    parser.add_argument("--policies", nargs="+", choices=names(), default=available)
    parser.add_argument("--tiers", choices=PRESETS, default="cxl")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument(
        "--settle", type=int, default=SETTLE, help="unmeasured steps before each measured step"
    )
    parser.add_argument(
        "--resume", action="store_true", help="keep the models already in the output file"
    )
    parser.add_argument("--output", type=Path, default=OUTPUT)
    arguments = parser.parse_args()
    if arguments.rounds < 1 or arguments.settle < 0:
        parser.error("--rounds must be at least 1 and --settle at least 0")
    if figures.ALL_FAST not in arguments.policies:
        arguments.policies = [figures.ALL_FAST, *arguments.policies]
    return arguments


def settings_of(arguments: argparse.Namespace) -> Settings:
    """Return the settings, and pin this process to all CPUs except the trainings' CPU.

    The daemons inherit the pinning. Raises RuntimeError.
    """
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        raise RuntimeError("at least two CPUs are needed: one for trainings, one for daemons")
    os.sched_setaffinity(0, set(cpus[1:]))
    return Settings(
        policies=tuple(arguments.policies),
        tiers=arguments.tiers,
        rounds=arguments.rounds,
        settle=arguments.settle,
        cpu=cpus[0],
    )


def common_settings(
    settings: Settings, sizes: tuple[int, ...], list_fraction: int | None
) -> dict[str, Any]:
    """Return the settings that all models in one file must share.

    sizes: enabled huge page sizes in bytes.
    list_fraction: value of vm.percpu_pagelist_high_fraction.
    """
    return {
        "huge_page_bytes": list(sizes),
        "percpu_pagelist_high_fraction": list_fraction,
        "births_counted": True,
        "energy": True,
        "policies": list(settings.policies),
        "tiers": settings.tiers,
        "rounds": settings.rounds,
        "settle": settings.settle,
    }


def write(output: Path, found: dict[str, Any], common: dict[str, Any]) -> dict[str, Any]:
    """Write the results of all models measured so far; return the summary.

    common: see common_settings().
    """
    summary = figures.summarise(found)
    what = f"emulated tiers (preset {common['tiers']}, one thread): no slow memory was used"
    results.write_models(output, {"what": what, **summary}, common, found)
    return summary


def main() -> int:
    """Measure the models one by one; return the exit status."""
    parser = argparse.ArgumentParser(prog="python3 -m tests.bench.training", description=__doc__)
    arguments = arguments_of(parser)
    try:
        settings = settings_of(arguments)
        with huge_sizes() as sizes, free_pages_kept() as fraction:
            common = common_settings(settings, sizes, fraction)
            found = results.earlier_models(arguments.output, common) if arguments.resume else {}
            summary = results.measure_models(
                arguments.models or MODELS,
                found,
                lambda model: measure(model, settings, say),
                lambda: write(arguments.output, found, common),
            )
    except (RuntimeError, OSError, SentinelError) as error:
        say(f"error: {error}")
        return 2
    print(figures.table(summary))
    print(f"written to {arguments.output}")
    return results.exit_status(summary)


if __name__ == "__main__":
    sys.exit(main())
