# SPDX-License-Identifier: Apache-2.0
"""`sentinelctl advise` on a trace file: output, interrupts and refusals."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from sentineld.advise.curve import Point
from sentineld.advise.pool import simulated_points
from sentineld.base.errors import SentinelError
from sentineld.cli import advise as module
from sentineld.cli.main import sentinelctl
from sentineld.host.presets import preset_tiers
from sentineld.profile.trace_file import save_trace
from tests.unit.cli.test_simulate import OWN
from tests.unit.traces import recorded
from tests.unit.trainer import MIB
from tests.unit.workloads import Network

NETWORK = Network(blocks=3, weight_bytes=MIB // 4, activation_bytes=MIB // 2, bytes_per_s=4e9)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "it.npz"
    save_trace(recorded(NETWORK), path)
    return path


def run(*arguments: str | Path) -> Result:
    command = ["--socket", "/nonexistent", "advise", *map(str, arguments), "--jobs", "1"]
    return CliRunner().invoke(sentinelctl, command)


def values(*arguments: str | Path) -> dict[str, Any]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    assert found["schema"] == 1
    return found


def refused(*arguments: str | Path) -> SentinelError:
    result = run(*arguments)
    error = result.exception
    assert isinstance(error, SentinelError), result.output
    assert "\n" not in str(error)
    assert error.hint
    return error


def test_more_fast_memory_makes_the_step_shorter_on_every_machine(trace: Path) -> None:
    found = values(trace, "--policy", "static", "--within", "10%", "--fast", "10%..90%/40%")
    assert [one["tiers"] for one in found["machines"]] == ["cxl", "remote", "optane", "nvme"]
    assert [one["paged"] for one in found["machines"]] == [False, False, False, True]
    assert found["complete"]
    assert found["within"] == pytest.approx(0.1)
    assert len(found["advice"]) == 4
    for machine in found["machines"]:
        alone, shared = machine["curves"]
        assert (alone["trainings"], shared["trainings"]) == (1, 2)
        assert shared["migration_bytes_per_s"] == alone["migration_bytes_per_s"] / 2
        for one, two in zip(alone["points"], shared["points"], strict=True):
            assert one["fast_bytes"] == two["fast_bytes"]
            assert two["slowdown"] > one["slowdown"] or two["slowdown"] is None
        steps = [point["slowdown"] for point in alone["points"]]
        assert len(steps) == 3
        assert steps[0] > steps[-1] >= 1
        within = [point["fast_bytes"] for point in alone["points"] if point["slowdown"] <= 1.1]
        assert alone["knee_bytes"] == (min(within) if within else None)


def test_steps_are_those_of_simulate(trace: Path) -> None:
    options = ["--tiers", "optane", "--fast", "40%"]
    advised = values(trace, *options, "--no-second", "--bound")["machines"][0]["curves"]
    (point,) = advised[0]["points"]
    simulate = ["--socket", "/nonexistent", "simulate", str(trace), *options, "--json"]
    simulated = json.loads(CliRunner().invoke(sentinelctl, simulate).stdout)
    assert point["fast_bytes"] == simulated["budget_bytes"]
    for name in ("step_seconds", "bound_seconds"):
        assert point[name] == pytest.approx(simulated[name], rel=1e-9)
    for name in ("bytes_promoted", "bytes_demoted"):
        assert point[name] == simulated[name]


def test_the_text_fits_a_terminal_and_answers_the_question(trace: Path) -> None:
    result = run(trace, "--policy", "static", "--fast", "50%..90%/40%", "--fast", "1MiB", "--bound")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert sum(line.split()[:3] == ["FAST", "BYTES", "cxl"] for line in lines) == 4
    for name in ("cxl", "remote", "optane", "nvme"):
        assert any(line.startswith(f"{name}: ") for line in lines), name
    assert sum(line.startswith("90%") for line in lines) == 4
    assert "of each of 2 trainings" in result.stdout
    assert "half of the fast memory" in " ".join(lines)


def test_a_file_and_a_number_of_threads(trace: Path, tmp_path: Path) -> None:
    own = tmp_path / "mine.toml"
    own.write_text(OWN)
    options = ("--tiers", own, "--tiers", "cxl", "--fast", "30%", "--policy", "slow-only")
    one, many = (values(trace, *options, "--threads", n)["machines"] for n in ("1", "12"))
    mine, cxl = ([one[at], many[at]] for at in (0, 1))
    assert mine[0]["tiers"] == "mine"
    assert mine[0] == mine[1]
    speeds = [[curve["slow_read_bytes_per_s"] for curve in machine["curves"]] for machine in cxl]
    assert speeds == [[2e9, 2e9], [24e9, 12e9]]


def test_the_disk_is_measured_instead_of_the_preset(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def measured(folder: Path, *_: object) -> object:
        asked.append(folder)
        return replace(preset_tiers("nvme", 1), migration_bytes_per_s=5e9)

    monkeypatch.setattr(module, "disk_tiers", measured)
    options = ("--fast", "50%", "--policy", "static", "--no-second", "--disk", tmp_path)
    found = values(trace, *options)
    assert [one["tiers"] for one in found["machines"]] == ["cxl", "remote", "optane", "disk"]
    assert found["machines"][3]["curves"][0]["migration_bytes_per_s"] == 5e9
    assert asked == [tmp_path]
    told = run(*(trace, *options)).stderr
    assert f"measuring the disk of {tmp_path}" in told
    assert "it reads 1.05 GB/s and writes 2.60 GB/s; a fault takes 70 us" in told


def test_a_disk_that_cannot_be_measured_is_reported(trace: Path, tmp_path: Path) -> None:
    error = refused(trace, "--disk", tmp_path / "none")
    assert (
        error.message == f"cannot measure the disk: {tmp_path / 'none'}: No such file or directory"
    )
    # No file can be created in /proc.
    error = refused(trace, "--disk", "/proc")
    assert error.message.startswith("cannot measure the disk: /proc: its file system cannot")


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_a_plot(trace: Path, tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / f"curve{suffix}"
    options = ("--policy", "static", "--tiers", "cxl", "--fast", "20%..80%/30%")
    result = run(trace, *options, "--output", file)
    assert result.exit_code == 0, result.output
    assert f"wrote {file}" in result.stdout
    assert file.stat().st_size > 10_000


def test_an_interrupt_keeps_the_results(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: Any) -> Iterator[Point]:
        found = simulated_points(*arguments)
        for _ in range(3):
            yield next(found)
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "simulated_points", interrupted)
    options = ("--policy", "static", "--tiers", "cxl", "--fast", "10%..50%")
    result = run(trace, *options)
    assert result.exit_code == 1  # click's test runner returns 1; entry.py would exit with 130
    assert "incomplete: 3 of 10 steps were simulated" in result.stderr
    column = [line.split()[3] for line in result.stdout.splitlines() if "% " in line[:4]]
    assert column.count("?") == 2
    # No point for two trainings was simulated, so their table is omitted.
    assert "of each of 2 trainings" not in result.stdout
    partial = json.loads(run(trace, *options, "--json").stdout)
    assert not partial["complete"]
    assert len(partial["machines"][0]["curves"][0]["points"]) == 3


def test_amounts_without_a_plan_are_marked_and_explained(trace: Path) -> None:
    options = ("--policy", "sentinel", "--tiers", "cxl", "--fast", "8KiB", "--fast", "90%")
    result = run(trace, *options, "--no-second")
    assert result.exit_code == 0, result.output
    assert "  -\n" in result.stdout
    assert "note: cxl," in result.stdout


@pytest.mark.parametrize(
    ("options", "code", "named"),
    [
        (["--policy", "sentinl"], "unknown-policy", "did you mean sentinel"),
        (["--tiers", "optan"], "usage", "did you mean optane"),
        (["--tiers", "/none/own.toml"], "bad-config", "does not exist"),
        (["--tiers", "cxl", "--tiers", "cxl"], "usage", "two machines are named cxl"),
        (["--fast", "0"], "usage", "0 bytes"),
        (["--fast", "90%..10%"], "usage", "not a range of shares"),
        (["--fast", "10%..200%"], "usage", "not a range of shares"),
        (["--fast", "10%..90%/0%"], "usage", "not a range of shares"),
        (["--within", "five"], "usage", "not a share of the step time"),
        (["--within", "500%"], "usage", "not a share of the step time"),
        (["--fast", "100"], "usage", "less than a page"),
        (["--output", "it.jpg"], "usage", "neither .png nor .svg"),
        (["--output", "/none/it.png"], "failed", "does not exist"),
    ],
)
def test_invalid_options_are_refused_with_a_one_line_error(
    trace: Path, options: list[str], code: str, named: str
) -> None:
    error = refused(trace, *options)
    assert error.code == code
    assert named in str(error)


def test_a_file_that_is_no_trace_is_refused(tmp_path: Path) -> None:
    assert "can't read" in str(refused(tmp_path / "none.npz"))
    other = tmp_path / "other.npz"
    np.savez(other, numbers=np.arange(3))
    assert "not a usable trace" in str(refused(other))


def test_a_trace_without_accesses_is_refused(tmp_path: Path) -> None:
    whole = recorded(NETWORK)
    file = tmp_path / "empty.npz"
    save_trace(replace(whole, samples=whole.samples[:0], op_accesses=whole.op_accesses[:0]), file)
    assert "no accesses" in str(refused(file))


def test_missing_libraries_are_named(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    assert "scipy" in str(refused(trace, "--tiers", "cxl", "--fast", "20%"))
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "python3-matplotlib" in str(refused(trace, "--output", "it.png"))
