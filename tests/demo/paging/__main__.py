# SPDX-License-Identifier: Apache-2.0
"""Part 1 of the demo: trains a model in less memory than needed, with sentineld or with Linux swap.

    python3 -m tests.demo.paging [--folder DIR] [--output build/demo]

Exit status: 0 if all rules of tests/demo/paging/rules.py hold, 1 if a rule fails, 2 after an error,
3 if this machine cannot run this part, 128 plus the signal's number after a signal.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from tests.bench.paging.figures import OURS, RAM
from tests.bench.traces import ROOT
from tests.demo.draw import draw
from tests.demo.paging import report, rules
from tests.demo.paging.possible import ImpossibleError, survey
from tests.demo.paging.run import Parameters
from tests.demo.paging.supervise import Event, InterruptedBySignalError, Signals, supervised
from tests.demo.progress import progress

MODEL, FRACTION = "mobilenet", 0.3
"""Tensors take two thirds of this training's memory. With a model whose tensors take a smaller
part, such as resnet18, Linux swap mostly evicts other memory, which is never used again, and swaps
few tensors out."""
ROUNDS, SETTLE, STEPS = 3, 1, 2
ABOUT = "two to three minutes on two idle CPUs"

IMPOSSIBLE = 3
"""Exit status on a machine that cannot run this part."""

OUTPUT = ROOT / "build" / "demo"


def options_of(arguments: list[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python3 -m tests.demo.paging",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--output", type=Path, default=OUTPUT, help="folder of the report")
    parser.add_argument(
        "--folder",
        type=Path,
        default=os.environ.get("DEMO_FOLDER") or OUTPUT,
        help="folder on the disk used for paging (default: DEMO_FOLDER, or build/demo)",
    )
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--without-swap", action="store_true", help="leave out Linux swap")
    return parser.parse_args(arguments)


class Listener:
    """Handles the measuring process's events: prints progress and keeps the result or the error."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self.done: dict[str, Any] = {}
        self.reason = ""

    def __call__(self, event: Event) -> None:
        kind = event.pop("event")
        if kind == "progress":
            self._say(event["text"])
        elif kind == "failed":
            self.reason = event["reason"]
        else:
            self.done = event


def main(arguments: list[str]) -> int:
    """Run the first part and return the exit status."""
    options = options_of(arguments)
    begin = time.monotonic()

    def say(text: str) -> None:
        progress(text, begin)

    for folder in (options.output, options.folder):
        folder.mkdir(parents=True, exist_ok=True)
    report.remove(options.output)
    signals = Signals()
    try:
        with signals.caught():
            return run(options, signals, say)
    except ImpossibleError as error:
        say(f"part 1 cannot run here: {error}")
        report.save_reason(str(error), options.output)
        return IMPOSSIBLE
    except InterruptedBySignalError as interrupted:
        say(f"{interrupted}; nothing is left behind")
        return 128 + interrupted.number
    except (RuntimeError, OSError) as error:
        say(f"error: {error}")
        return 2


def run(options: argparse.Namespace, signals: Signals, say: Callable[[str], None]) -> int:
    """Measure and report; return the exit status. Raises ImpossibleError if this machine cannot run
    the first part, InterruptedBySignalError after a signal, or RuntimeError or OSError if
    measuring or reporting fails."""
    begin = time.monotonic()
    possible = survey(options.folder, swap_wanted=not options.without_swap)
    say(f"part 1: {options.model} in {FRACTION:.0%} of its tensors' memory, about {ABOUT}")
    for one in possible.left_out:
        say(str(one))
    parameters = Parameters(
        model=options.model,
        fraction=FRACTION,
        contestants=[RAM, *([report.SWAP] if possible.swap else []), OURS],
        rounds=options.rounds,
        settle=SETTLE,
        steps=STEPS,
        folder="",
        grouped=possible.grouped,
        counted=possible.counted,
    )
    log = options.output / "paging.log"
    listener = Listener(say)
    status = supervised(
        lambda work: command(replace(parameters, folder=str(work))),
        options.folder,
        log,
        listener,
        signals,
    )
    if status != 0 or not listener.done:
        raise RuntimeError(f"part 1 failed: {listener.reason or f'status {status}'} (see {log})")
    result = report.assemble(
        listener.done, possible.left_out, options.folder, time.monotonic() - begin
    )
    verdicts = rules.check(result)
    report.save(result, verdicts, options.output)
    draw("tests.demo.paging.picture", result, options.output / "paging.png")
    print(report.markdown(result, verdicts), flush=True)
    say(f"report in {options.output}: {', '.join(report.FILES)}")
    return 0 if all(verdict.holds for verdict in verdicts) else 1


def command(parameters: Parameters) -> list[str]:
    """The command line of the measuring process."""
    return [sys.executable, "-m", "tests.demo.paging.run", json.dumps(asdict(parameters))]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
