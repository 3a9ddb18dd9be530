# SPDX-License-Identifier: Apache-2.0
"""Measures the cost of profiling and writes build/bench/profile.json.

    python3 -m tests.bench.profile [--only PART]...

Parts: instructions (counted in a guest under -icount), steps (training timed in a
guest), drain (timed on this machine). With --only, the other parts keep the
figures of the previous run. Exit status 0 if every measured goal holds, 1 if one
fails, 2 if something could not be measured.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.bench import drain, figures, instructions, steps
from tests.vm.host import REPOSITORY, MachineError, phase

PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    "drain": drain.measure,
    "instructions": instructions.measure,
    "steps": steps.measure,
}


def earlier(path: Path) -> dict[str, Any]:
    """Return the raw figures of the previous run, if any."""
    try:
        raw: dict[str, Any] = json.loads(path.read_text())["raw"]
    except FileNotFoundError:
        return {}
    return {name: found for name, found in raw.items() if name in PARTS}


def main(arguments: list[str]) -> int:
    """Measure the chosen parts; return the exit status."""
    parser = argparse.ArgumentParser(prog="python3 -m tests.bench.profile", description=__doc__)
    parser.add_argument("--only", action="append", choices=tuple(PARTS), metavar="PART")
    parser.add_argument("--output", type=Path, default=REPOSITORY / "build/bench/profile.json")
    options = parser.parse_args(arguments)
    wanted = options.only or list(PARTS)
    raw = earlier(options.output) if options.only else {}
    try:
        for name in wanted:
            with phase(name):
                measured = PARTS[name]()
            now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            raw[name] = {"measured_at": now, "host_kernel": platform.release(), **measured}
    except (MachineError, subprocess.SubprocessError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    profile = {**figures.summarise(raw), "emulated": figures.EMULATED, "raw": raw}
    if "instructions" in raw:
        profile["kernel_release"] = raw["instructions"]["kernel_release"]
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(profile, indent=1) + "\n")
    print(figures.tables(profile))
    print(f"written to {options.output}")
    return 0 if all(goal["holds"] for goal in profile["goals"].values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
