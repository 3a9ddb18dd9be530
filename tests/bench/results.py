# SPDX-License-Identifier: Apache-2.0
"""The result file of a benchmark that measures model by model and can be resumed."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

Json = dict[str, Any]


def earlier_models(output: Path, settings: Json) -> Json:
    """Return the file's results by model. Raises RuntimeError if the file has other settings or no
    results."""
    try:
        found = json.loads(output.read_text())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise RuntimeError(f"{output} has no results: {error}; remove it") from error
    if found["settings"] != settings:
        raise RuntimeError(f"{output} has other settings: {found['settings']}")
    models: Json = found["raw"]
    return models


def say(line: str) -> None:
    """Print progress to standard error."""
    print(line, file=sys.stderr, flush=True)


def measure_models(
    models: Iterable[str], found: Json, measure: Callable[[str], Json], write: Callable[[], Json]
) -> Json:
    """Measure the models that are not yet in `found` one by one, and add the results to `found`.

    write: writes all models of `found` to the output file and returns their summary.
    """
    for model in models:
        if model not in found:
            began_s = time.monotonic()
            found[model] = measure(model)
            write()
            say(f"{model}: {time.monotonic() - began_s:.0f} s")
    return write()


def exit_status(summary: Json) -> int:
    """Return 2 if a row has a note (it was not measured), else 0 if every goal holds, else 1."""
    if any(row.get("note") for row in summary.get("rows", ())):
        return 2
    return 0 if all(goal["holds"] for goal in summary["goals"].values()) else 1


def write_models(output: Path, summary: Json, settings: Json, raw: Json) -> None:
    """Write the results of all models measured so far, the settings and facts about the machine."""
    machine = {"cpus": os.cpu_count(), "kernel": platform.release(), "threads": 1}
    write(output, {**summary, "settings": settings, "machine": machine, "raw": raw})


def write(output: Path, whole: Json) -> None:
    """Write atomically, so that a concurrent reader sees the old or the new file."""
    output.parent.mkdir(parents=True, exist_ok=True)
    part = output.with_name(output.name + ".part")
    part.write_text(json.dumps(whole, indent=1) + "\n")
    part.rename(output)
