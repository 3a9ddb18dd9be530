# SPDX-License-Identifier: Apache-2.0
"""The demo's workload has the properties that the demo relies on."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
SCRIPT = TESTS / "demo" / "train.py"
EAGER = TESTS / "eager.py"
SMALL = ["--blocks", "2", "--positions", "32", "--width", "64"]

PEAK_PROBE = """
import runpy, sys
from tests.eager import defer_compiler
defer_compiler()
from torch.profiler import profile
with profile(profile_memory=True) as profiler:
    runpy.run_path(sys.argv.pop(1), run_name="__main__")
live = peak = 0
for event in profiler.profiler.kineto_results.events():
    if event.name() == "[memory]":
        live += event.nbytes()
        peak = max(peak, live)
print("peak", peak)
"""


RUNS = """
import json, runpy, sys
from tests.eager import defer_compiler
defer_compiler()
for arguments in json.loads(sys.argv[1]):
    sys.argv = arguments
    runpy.run_path(sys.argv[0], run_name="__main__")
    print("end")
"""


def train(*runs: tuple[str, ...]) -> list[list[str]]:
    """Train repeatedly in one process; returns the lines of each run."""
    arguments = [[str(SCRIPT), *SMALL, *run] for run in runs]
    command = [sys.executable, "-c", RUNS, json.dumps(arguments)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=TESTS.parent)
    return [output.splitlines() for output in done.stdout.split("end\n")[:-1]]


def losses(lines: list[str]) -> list[float]:
    matches = [re.fullmatch(r"step \d+ loss (\S+) seconds \d+\.\d+", line) for line in lines]
    assert all(matches)
    return [float.fromhex(match[1]) for match in matches if match]


def test_it_learns_and_is_reproducible_bit_for_bit() -> None:
    runs = train(("--steps", "60"), ("--steps", "8"), ("--steps", "2", "--seed", "2"))
    first, again, other = map(losses, runs)
    assert len(first) == 60
    assert sum(first[-10:]) < 0.95 * sum(first[:10])
    assert again == first[:8]
    assert other != first[:2]


def test_it_waits_for_the_go_file(tmp_path: Path) -> None:
    go = tmp_path / "go"
    train = [sys.executable, "-u", str(EAGER), str(SCRIPT), *SMALL, "--steps", "2"]
    command = [*train, "--wait-file", str(go)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        time.sleep(0.3)
        assert process.poll() is None
        go.touch()
        rest = process.stdout.read().splitlines()
        assert process.wait() == 0
    assert len(losses(rest)) == 2


def test_its_peak_is_200_to_300_mib() -> None:
    pytest.importorskip("torch")
    result = subprocess.run(
        [sys.executable, "-c", PEAK_PROBE, str(SCRIPT), "--steps", "2"],
        check=True,
        capture_output=True,
        text=True,
        cwd=TESTS.parent,
    )
    peak_bytes = int(result.stdout.split()[-1])
    assert 200 << 20 <= peak_bytes <= 300 << 20


def test_it_reads_the_time_of_its_steps_from_a_devices_memory(tmp_path: Path) -> None:
    device = tmp_path / "device"
    device.write_bytes((7_000_000_000_000).to_bytes(8, "little") + bytes(4088))
    (lines,) = train(("--steps", "2", "--clock", str(device)))
    assert [line.split()[-1] for line in lines] == ["0.000000", "0.000000"]
