# SPDX-License-Identifier: Apache-2.0
"""Measures trainings on emulated tiers and writes build/bench/train.json.

    python3 -m tests.bench.training [MODEL ...] [--rounds N] [--resume]

Each model is trained under each policy side by side, a daemon for each, at 20 %
fast memory. In every round each takes its turn: steps until it is as if it had
never stood, and one that is measured. Trainings have a CPU of their own, one
torch thread; daemons and this program have another. Huge pages of 64 KiB are
offered meanwhile, where the kernel has them, and what a step gives back is kept
from a hypervisor. Exit status 0 if every goal holds, 1 if not, 2 if something
could not be measured.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

from sentineld.base.errors import SentinelError
from sentineld.host.presets import PRESETS
from sentineld.policies.registry import names
from tests.bench import results
from tests.bench.memory_settings import free_pages_kept, huge_sizes
from tests.bench.models import MODELS
from tests.bench.traces import ROOT
from tests.bench.training import figures
from tests.bench.training.measure import Settings, measure

OUTPUT = ROOT / "build" / "bench" / "train.json"
POLICIES = (figures.ALL_FAST, figures.ALL_SLOW, "first-touch", "static", "sentinel", figures.OURS)
ROUNDS = 10
SETTLE = 1


def say(line: str) -> None:
    """Progress, on the standard error."""
    print(line, file=sys.stderr, flush=True)


def arguments_of(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The command line."""
    there = [name for name in POLICIES if name in names()]
    parser.add_argument("models", nargs="*", choices=[*MODELS, []])
    parser.add_argument("--policies", nargs="+", choices=names(), default=there)
    parser.add_argument("--tiers", choices=PRESETS, default="cxl")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--settle", type=int, default=SETTLE, help="steps before a measured one")
    parser.add_argument("--resume", action="store_true", help="keep the models measured before")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    arguments = parser.parse_args()
    if arguments.rounds < 1 or arguments.settle < 0:
        parser.error("give 1 round or more and 0 steps to settle or more")
    if figures.ALL_FAST not in arguments.policies:
        arguments.policies = [figures.ALL_FAST, *arguments.policies]
    return arguments


def settings_of(arguments: argparse.Namespace) -> Settings:
    """Puts this process, and so the daemons, on the other CPU. Raises RuntimeError."""
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        raise RuntimeError("two CPUs are needed: one for the training, one for the daemon")
    os.sched_setaffinity(0, set(cpus[1:]))
    return Settings(
        policies=tuple(arguments.policies),
        tiers=arguments.tiers,
        rounds=arguments.rounds,
        settle=arguments.settle,
        cpu=cpus[0],
    )


def compared(
    settings: Settings, sizes: tuple[int, ...], list_fraction: int | None
) -> dict[str, Any]:
    """What models must have in common to stand in one file. sizes: of huge pages. list_fraction:
    of memory, on the CPUs' lists of free pages."""
    return {
        "huge_page_bytes": list(sizes),
        "percpu_pagelist_high_fraction": list_fraction,
        "births_counted": True,
        "policies": list(settings.policies),
        "tiers": settings.tiers,
        "rounds": settings.rounds,
        "settle": settings.settle,
    }


def write(output: Path, found: dict[str, Any], common: dict[str, Any]) -> dict[str, Any]:
    """All models so far; returns the summary. common: what they have in common."""
    summary = figures.summarise(found)
    what = f"emulated tiers (preset {common['tiers']}, one thread): no slow memory was used"
    results.write_models(output, {"what": what, **summary}, common, found)
    return summary


def main() -> int:
    """Measure the models one after the other; the exit status."""
    parser = argparse.ArgumentParser(prog="python3 -m tests.bench.training", description=__doc__)
    arguments = arguments_of(parser)
    try:
        settings = settings_of(arguments)
        with huge_sizes() as sizes, free_pages_kept() as fraction:
            common = compared(settings, sizes, fraction)
            found = results.kept(arguments.output, common) if arguments.resume else {}
            models = [model for model in arguments.models or MODELS if model not in found]
            for model in models:
                began_s = time.monotonic()
                found[model] = measure(model, settings, say)
                write(arguments.output, found, common)
                say(f"{model}: {time.monotonic() - began_s:.0f} s")
        summary = write(arguments.output, found, common)
    except (RuntimeError, OSError, SentinelError) as error:
        say(f"error: {error}")
        return 2
    print(figures.table(summary))
    print(f"written to {arguments.output}")
    return 0 if all(goal["holds"] for goal in summary["goals"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
