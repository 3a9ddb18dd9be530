# SPDX-License-Identifier: Apache-2.0
"""`sentinelctl simulate` on a trace file: what it prints, what it refuses."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sentineld.base.errors import SentinelError
from sentineld.cli.main import sentinelctl
from sentineld.profile.trace_file import save_trace
from tests.unit.traces import recorded
from tests.unit.trainer import MIB
from tests.unit.workloads import Network

KEYS = {
    "step_seconds",
    "fast_only_seconds",
    "slow_only_seconds",
    "bound_seconds",
    "plan_seconds",
    "bytes_promoted",
    "bytes_demoted",
    "late_moves",
    "peak_fast_bytes",
}

OWN = """
[tiers]
fast_read_bytes_per_s = 50e9
fast_write_bytes_per_s = 50e9
slow_read_bytes_per_s = 10e9
slow_write_bytes_per_s = 5e9
migration_bytes_per_s = 4e9
"""


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    network = Network(blocks=3, weight_bytes=MIB // 4, activation_bytes=MIB // 2, bytes_per_s=4e9)
    path = tmp_path_factory.mktemp("trace") / "it.npz"
    save_trace(recorded(network), path)
    return path


def run(*arguments: str | Path) -> Result:
    command = ["--socket", "/nonexistent", "simulate", *map(str, arguments)]
    return CliRunner().invoke(sentinelctl, command)


def values(*arguments: str | Path) -> dict[str, Any]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.output)
    assert found["schema"] == 1
    return found


def refused(*arguments: str | Path) -> SentinelError:
    error = run(*arguments).exception
    assert isinstance(error, SentinelError)
    assert "\n" not in str(error)
    assert error.hint
    return error


def test_the_figures_of_a_step(trace: Path) -> None:
    found = values(trace, "--policy", "sentinel", "--tiers", "cxl", "--fast", "0.4")
    assert set(found) >= KEYS
    assert found["fast_fraction"] == pytest.approx(0.4, abs=1e-3)
    assert found["fast_only_seconds"] <= found["bound_seconds"] <= found["step_seconds"]
    assert found["step_seconds"] <= found["slow_only_seconds"]
    assert 0 < found["peak_fast_bytes"] <= found["budget_bytes"]
    assert isinstance(found["late_moves"], int)
    assert (found["policy"], found["kind"], found["tiers"]) == ("sentinel", "software", "cxl")


def test_more_threads_make_a_slow_byte_cheaper(trace: Path) -> None:
    one, many = (
        values(trace, "--policy", "slow-only", "--threads", threads) for threads in ("1", "12")
    )
    extra = [found["step_seconds"] - found["fast_only_seconds"] for found in (one, many)]
    assert extra[0] == pytest.approx(12 * extra[1], rel=1e-6)


def test_figures_of_one_s_own(trace: Path, tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text(OWN)
    found = values(trace, "--policy", "slow-only", "--tiers", file, "--threads", "1")
    again = values(trace, "--policy", "slow-only", "--tiers", file, "--threads", "12")
    assert found["tiers"] == "config"
    # Own figures are not scaled.
    assert found["step_seconds"] == again["step_seconds"] > found["fast_only_seconds"]


def test_text_for_people(trace: Path) -> None:
    result = run(trace, "--fast", "50%")
    assert result.exit_code == 0, result.output
    assert "times all-fast" in result.output
    assert "steps of profile" in result.output


def test_without_scipy_there_is_no_bound(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    found = values(trace, "--policy", "first-touch")
    assert found["bound_seconds"] is None
    assert any("scipy" in note for note in found["notes"])


@pytest.mark.parametrize(
    ("options", "code", "named"),
    [
        (["--policy", "sentinl"], "unknown-policy", "did you mean sentinel"),
        (["--tiers", "optan"], "usage", "did you mean optane"),
        (["--tiers", "/none/own.toml"], "bad-config", "does not exist"),
        (["--fast", "0"], "usage", "0 bytes"),
        (["--fast", "150%"], "usage", "not a share"),
        (["--fast", "4KiB", "--policy", "sentinel"], "failed", "infeasible"),
        (["--fast", "100", "--policy", "first-touch"], "usage", "less than a page"),
        (["--interference", "1"], "usage", "interference"),
        (["--noise", "-1"], "usage", "noise"),
    ],
)
def test_what_can_t_be_is_refused_in_a_line(
    trace: Path, options: list[str], code: str, named: str
) -> None:
    error = refused(trace, *options)
    assert error.code == code
    assert named in str(error)


def test_a_trace_that_is_none(tmp_path: Path, trace: Path) -> None:
    assert "can't read" in str(refused(tmp_path / "none.npz"))
    cut = tmp_path / "cut.npz"
    cut.write_bytes(trace.read_bytes()[:2000])
    assert "not a usable trace" in str(refused(cut))


def test_preset_figures_of_a_table_that_lacks_one(trace: Path, tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text(OWN.replace("slow_read_bytes_per_s = 10e9", ""))
    assert "slow_read_bytes_per_s" in str(refused(trace, "--tiers", file))
