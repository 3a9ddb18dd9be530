# SPDX-License-Identifier: Apache-2.0
"""Measures the contestants of the demo's first part (see tests/bench/paging/contestants.py).

    python3 -m tests.demo.paging.run PARAMETERS

PARAMETERS is the JSON text of Parameters. The parent process (tests/demo/paging/supervise.py) reads
events from this program's standard output, one JSON object a line:

    {"event": "progress", "text"}
    {"event": "failed", "reason"}
    {"event": "done", ...}         the figures for report.assemble()

Everything else goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from sentineld.base.errors import SentinelError
from tests.bench.paging.needs import needs_of
from tests.bench.paging.race import Settings, race
from tests.demo.paging.report import TITLES


@dataclass(frozen=True)
class Parameters:
    """The parameters of the measurement. For `grouped` and `counted`, see Settings in
    tests/bench/paging/race.py."""

    model: str
    fraction: float  # share of the tensors' peak that fits in memory
    contestants: list[str]
    rounds: int
    settle: int  # unmeasured steps of a turn
    steps: int  # measured steps of a turn
    folder: str
    grouped: bool
    counted: bool


def measured(parameters: Parameters, events: TextIO) -> dict[str, Any]:
    """Measure all contestants. Raises RuntimeError, OSError or SentinelError if this fails."""

    def say(text: str) -> None:
        send(events, "progress", text=text)

    def say_of_race(text: str) -> None:
        name, colon, rest = text.partition(":")
        say(TITLES.get(name, name) + colon + rest)

    folder = Path(parameters.folder)
    say(f"{parameters.model} trains without a limit, to find out how much memory it needs")
    needs = needs_of(parameters.model, folder)
    settings = Settings(
        folder=folder,
        rounds=parameters.rounds,
        settle=parameters.settle,
        steps=parameters.steps,
        grouped=parameters.grouped,
        counted=parameters.counted,
        corrected=False,
    )
    limit_bytes = needs.limit_bytes(parameters.fraction)
    limit = f"; the limit is {limit_bytes >> 20} MiB" if parameters.grouped else ""
    say(
        f"it needs {needs.resident_bytes >> 20} MiB, {needs.profile.peak_bytes >> 20} MiB of them "
        f"for tensors{limit}"
    )
    found = race(
        parameters.model, needs, parameters.fraction, parameters.contestants, settings, say_of_race
    )
    for one in found.values():
        # These objects are not JSON, and the report does not need them.
        one.pop("plan", None)
        one.pop("profile", None)
    return {
        "model": parameters.model,
        "fraction": parameters.fraction,
        "tensor_peak_bytes": needs.profile.peak_bytes,
        "resident_bytes": needs.resident_bytes,
        "fast_bytes": needs.fast_bytes(parameters.fraction),
        "contestants": found,
    }


def send(events: TextIO, event: str, **values: Any) -> None:
    """Send an event."""
    print(json.dumps({"event": event, **values}), file=events, flush=True)


def main() -> int:
    """Measure, and return the exit status."""
    # Output of other code, and the daemons' log, must not mix with the events.
    events = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        send(events, "done", **measured(Parameters(**json.loads(sys.argv[1])), events))
    except (RuntimeError, OSError, SentinelError) as error:
        send(events, "failed", reason=str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
