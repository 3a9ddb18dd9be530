# SPDX-License-Identifier: Apache-2.0
"""Measures trainings whose sequence length differs between steps; writes build/bench/lengths.json.

    python3 -m tests.bench.lengths [--rounds N] [--lengths NAME ...]

A transformer is trained on emulated tiers (preset cxl), with a process and a daemon for each
combination of lengths and policy. With the lengths "eight", each step uses one of eight lengths at
random. With "padded", it uses the length of the longest of eight sentences of random length, as
with dynamic padding. Each of the eight lengths also has a training of its own, whose plan is for
this length only.
All trainings have the same budget: 20 % of the first training's peak. The trainings take turns.
They share one CPU, and the daemons run on the other CPUs. Exit status 0 if every goal holds, 1 if
not, 2 if something could not be measured.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from sentineld.base.errors import SentinelError
from tests.bench import results
from tests.bench.goals import goal_lines
from tests.bench.lengths import figures
from tests.bench.lengths.figures import FIRST_TOUCH, OURS, Timed
from tests.bench.lengths.sequence import EIGHT, LENGTHS, NAMES, PADDED, lengths
from tests.bench.results import say
from tests.bench.traces import ROOT
from tests.bench.training.managed import ManagedTraining, Setup
from tests.bench.training_process import pinned

OUTPUT = ROOT / "build" / "bench" / "lengths.json"
TIERS = "emulated:cxl"
ALL_FAST = "fast-only"
ROUNDS = 5
TURN_STEPS = {EIGHT: 40, PADDED: 20}
"""Measured steps of a turn. The trainings with a fixed length need only FIXED_TURN_STEPS, because
all their steps are alike."""
FIXED_TURN_STEPS = 5
SETTLE = 3
"""Unmeasured steps at the beginning of a turn. They undo the effects of moves that went on while
the training paused."""
MANAGED_AFTER_STEPS_MAX = 600
FOLLOWED_STEPS = 24
"""A plan must have been live for this number of consecutive steps before it is measured."""


class Contestant:
    """A training that is managed under one policy on sequences of certain lengths, and its measured
    steps."""

    def __init__(self, names: tuple[str, str], fast: str, folder: Path, cpu: int) -> None:
        """names: (lengths, policy). Raises RuntimeError or SentinelError if the training or its
        daemon cannot be started."""
        self.names = names
        self._varies = not names[0].isdigit()
        setup = Setup(names[1], TIERS, fast, pinned(cpu))
        self.managed = ManagedTraining(f"transformer-{names[0]}", setup, folder)
        self.steps: list[Timed] = []
        self.diverged = 0

    def manage(self) -> None:
        """Attach, and train until a plan has been live for FOLLOWED_STEPS steps. It must be a plan
        for varying sizes if the lengths vary, else a plan for fixed sizes. Raises RuntimeError."""
        problem = self.managed.manage()
        if problem:
            raise RuntimeError(f"{self.names}: {problem}")
        training, live = self.managed.training, 0
        while live < FOLLOWED_STEPS:
            training.steps(4)
            session = self.managed.session()
            ready = session["state"] == "managed" and session["sizes_vary"] == self._varies
            live = live + 4 if ready else 0
            if len(training.losses) > MANAGED_AFTER_STEPS_MAX:
                raise RuntimeError(f"{self.names}: {session['state']} ({session['reason']})")
        self.budget_bytes = int(session["budget_bytes"])

    def turn(self) -> None:
        """Run SETTLE unmeasured steps, then the measured ones."""
        training = self.managed.training
        training.steps(SETTLE)
        before, diverged = len(training.losses), self.managed.session()["diverged_steps"]
        used = training.steps(TURN_STEPS.get(self.names[0], FIXED_TURN_STEPS))
        taken = itertools.islice(lengths(self.names[0]), before, before + len(used))
        self.steps += [
            Timed(length, one.time_ns / 1e9) for length, one in zip(taken, used, strict=True)
        ]
        self.diverged += self.managed.session()["diverged_steps"] - diverged


def contests(wanted: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """The pairs (lengths, policy) to measure. The first pair sets the budget."""
    for name in wanted:
        if name in (PADDED, str(LENGTHS[-1])):
            yield from ((name, policy) for policy in (OURS, FIRST_TOUCH, ALL_FAST))
        else:
            yield name, OURS


def align(found: list[Contestant]) -> None:
    """Bring all trainings that differ only in the policy to the same number of steps, so that
    their next steps use sequences of the same lengths. Raises RuntimeError if a training ends."""
    taken: defaultdict[str, int] = defaultdict(int)
    for one in found:
        steps = len(one.managed.training.losses)
        taken[one.names[0]] = max(taken[one.names[0]], steps)
    for one in found:
        training = one.managed.training
        if missing := taken[one.names[0]] - len(training.losses):
            training.steps(missing)


def measure(wanted: tuple[str, ...], rounds: int, cpu: int) -> list[Contestant]:
    """Measure all contestants in alternating turns.

    Raises RuntimeError, OSError or SentinelError if a training cannot be measured.
    """
    found: list[Contestant] = []
    with tempfile.TemporaryDirectory() as name, ExitStack() as ending:
        fast = "20%"
        for names in contests(wanted):
            folder = Path(name) / "-".join(names)
            folder.mkdir()
            one = Contestant(names, fast, folder, cpu)
            ending.callback(one.managed.close)
            one.manage()
            fast = str(one.budget_bytes)
            say(f"{names[0]}, {names[1]}: managed after {len(one.managed.training.losses)} steps")
            found.append(one)
        align(found)
        for number in range(rounds):
            say(f"round {number + 1} of {rounds}")
            for one in found:
                one.turn()
    return found


def main() -> int:
    """Measure, write the result and print it; return the exit status."""
    parser = argparse.ArgumentParser(prog="python3 -m tests.bench.lengths", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--lengths", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    arguments = parser.parse_args()
    cpus = sorted(os.sched_getaffinity(0))
    try:
        if len(cpus) < 2:
            raise RuntimeError("at least two CPUs are needed: one for trainings, one for daemons")
        os.sched_setaffinity(0, set(cpus[1:]))
        found = measure(tuple(arguments.lengths), arguments.rounds, cpus[0])
    except (RuntimeError, OSError, SentinelError) as error:
        say(f"error: {error}")
        return 2
    summary = figures.summarise(
        {one.names: one.steps for one in found}, {one.names: one.diverged for one in found}
    )
    what = f"emulated tiers ({TIERS}, one thread): no slow memory was used"
    results.write(arguments.output, {"what": what, "rounds": arguments.rounds, **summary})
    print(figures.text(summary))
    print("\n".join(goal_lines(summary["goals"])))
    print(f"written to {arguments.output}")
    return results.exit_status(summary)


if __name__ == "__main__":
    sys.exit(main())
