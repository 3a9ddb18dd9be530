# SPDX-License-Identifier: Apache-2.0
"""Measures what the shim costs a training and writes build/bench/shim.json.

    python3 -m tests.bench.shim [MODEL ...] [--pairs N]

All modes of a model live side by side and take one step in turn, so that each
round is one pair for every ratio: plain twice, under tcmalloc, with the shim
dormant, recording, and replaying a plan of which all is fast. One torch thread;
CPU time of the whole process. Exit status 0 if every goal holds, 1 if not, 2
if something could not be measured.
"""

from __future__ import annotations

import argparse
import ctypes.util
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.bench.models import MODELS
from tests.bench.shim import figures
from tests.bench.shim.contestant import ROOT, Contestant
from tests.bench.shim.manager import Manager

OUTPUT = ROOT / "build" / "bench" / "shim.json"
WARM_UP_STEPS = 2
GROUPED_STEPS = 3
PAIRS = 20


def tcmalloc() -> str:
    """Its library's name for the loader. Raises RuntimeError."""
    name = ctypes.util.find_library("tcmalloc_minimal")
    if name is None:
        raise RuntimeError("no libtcmalloc_minimal (apt install libtcmalloc-minimal4)")
    return name


def grouped(model: str, folder: Path) -> dict[str, Any]:
    """The arena of a plan that groups by tier: the most that is resident while it is replayed."""
    manager = Manager(model, folder)
    try:
        planned = manager.replay(manager.profile(), "sentinel")
        most = 0
        goal = len(manager.contestant.losses) + GROUPED_STEPS
        with manager.contestant.stepping():
            while len(manager.contestant.losses) < goal:
                most = max(most, manager.resident_arena_bytes())
                time.sleep(0.005)
        return {
            "resident_bytes": most,
            "arena_bytes": planned.layout.arena_bytes,
            "peak_bytes": planned.peak_bytes,
            "resident_over_peak": most / planned.peak_bytes,
            "diverged_steps": manager.diverged_steps(),
        }
    finally:
        manager.close()


def compare(model: str, pairs: int, folder: Path) -> dict[str, Any]:
    """Steps of all modes in turn."""
    with ExitStack() as ending:

        def managed(name: str) -> Manager:
            (folder / name).mkdir()
            manager = Manager(model, folder / name)
            ending.callback(manager.close)
            return manager

        def unmanaged(**how: Any) -> Contestant:
            contestant = Contestant(model, **how)
            ending.callback(contestant.close)
            return contestant

        recording, replaying = managed("recording"), managed("replay")
        planned = replaying.replay(replaying.profile(), "fast-only")
        recording.record()
        modes = {
            "plain": unmanaged(),
            "plain-again": unmanaged(),
            "tcmalloc": unmanaged(preload=tcmalloc()),
            "dormant": unmanaged(socket_path=folder / "nobody"),
            "recording": recording.contestant,
            "replay": replaying.contestant,
        }
        drain: dict[str, Callable[[], int]] = {"recording": recording.drain}
        cpu_s: dict[str, list[float]] = {mode: [] for mode in modes}
        faults: dict[str, list[int]] = {mode: [] for mode in modes}
        order = list(modes)
        for turn in range(-WARM_UP_STEPS, pairs):
            for mode in order:
                used = modes[mode].step()
                drain.get(mode, int)()
                if turn >= 0:
                    cpu_s[mode].append(used.cpu_s)
                    faults[mode].append(used.minor_faults)
            order.append(order.pop(0))
        steps = len(modes["plain"].losses)
        losses = modes["plain"].losses
        return {
            "cpu_s": cpu_s,
            "minor_faults": faults,
            "max_rss_bytes": {mode: one.max_rss_bytes() for mode, one in modes.items()},
            "losses_equal": {mode: one.losses[:steps] == losses for mode, one in modes.items()},
            "replay": {
                "planned_share": planned.planned_share,
                "planned_bytes_share": planned.planned_bytes_share,
                "outside_bytes": replaying.outside_bytes(),
                "diverged_steps": replaying.diverged_steps(),
                "arena_bytes": planned.layout.arena_bytes,
                "resident_arena_bytes": replaying.resident_arena_bytes(),
            },
        }


def main() -> int:
    """Measure the models one after the other; the exit status."""
    parser = argparse.ArgumentParser(prog="python3 -m tests.bench.shim", description=__doc__)
    parser.add_argument("models", nargs="*", choices=[*MODELS, []])
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    arguments = parser.parse_args()
    found: dict[str, Any] = {}
    try:
        for model in arguments.models or MODELS:
            begin = time.monotonic()
            with tempfile.TemporaryDirectory() as name:
                raw = compare(model, arguments.pairs, Path(name))
                found[model] = raw | {"grouped": grouped(model, Path(name))}
            print(f"{model}: {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
    except (RuntimeError, OSError, AssertionError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    summary = figures.summarise(found)
    machine = {"cpus": os.cpu_count(), "kernel": platform.release(), "threads": 1}
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(
        json.dumps({**summary, "machine": machine, "raw": found}, indent=1) + "\n"
    )
    print(figures.tables(summary))
    print(f"written to {arguments.output}")
    return 0 if all(goal["holds"] for goal in summary["goals"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
