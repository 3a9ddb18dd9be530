# SPDX-License-Identifier: Apache-2.0
"""`sentinelctl simulate` on a trace file: output and refusals."""

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


def test_the_result_is_between_all_fast_and_all_slow(trace: Path) -> None:
    found = values(trace, "--policy", "sentinel", "--tiers", "cxl", "--fast", "0.4")
    assert set(found) >= KEYS
    assert found["fast_fraction"] == pytest.approx(0.4, abs=1e-3)
    assert found["fast_only_seconds"] <= found["bound_seconds"] <= found["step_seconds"]
    assert found["step_seconds"] <= found["slow_only_seconds"]
    assert 0 < found["peak_fast_bytes"] <= found["budget_bytes"]
    assert isinstance(found["late_moves"], int)
    assert (found["policy"], found["kind"], found["tiers"]) == ("sentinel", "software", "cxl")


def test_slow_accesses_cost_less_with_more_threads(trace: Path) -> None:
    one, many = (
        values(trace, "--policy", "slow-only", "--threads", threads) for threads in ("1", "12")
    )
    extra = [found["step_seconds"] - found["fast_only_seconds"] for found in (one, many)]
    assert extra[0] == pytest.approx(12 * extra[1], rel=1e-6)


def test_configured_bandwidths_do_not_scale_with_threads(trace: Path, tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text(OWN)
    found = values(trace, "--policy", "slow-only", "--tiers", file, "--threads", "1")
    again = values(trace, "--policy", "slow-only", "--tiers", file, "--threads", "12")
    assert found["tiers"] == "config"
    assert found["step_seconds"] == again["step_seconds"] > found["fast_only_seconds"]


def test_variants_of_the_timing_model_change_the_step(trace: Path) -> None:
    plain, compute, tiers, yielding = (
        values(trace, "--fast", "0.4", *options)
        for options in (
            (),
            ("--overlap", "compute"),
            ("--overlap", "tiers"),
            ("--moves-yield",),
        )
    )
    assert tiers["step_seconds"] < plain["step_seconds"] < yielding["step_seconds"]
    assert tiers["bound_seconds"] < plain["bound_seconds"] < yielding["bound_seconds"]
    assert (tiers["overlap"], plain["overlap"], yielding["moves_yield"]) == ("tiers", "none", True)
    text = run(trace, "--fast", "0.4", "--overlap", "tiers", "--moves-yield").output
    assert "on cxl, overlap tiers, moves yield" in text
    assert compute["bound_seconds"] <= plain["bound_seconds"]
    assert tiers["slow_only_seconds"] == pytest.approx(plain["slow_only_seconds"])


def test_a_file_selects_a_variant_of_the_timing_model(trace: Path, tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text(OWN)
    plain = values(trace, "--policy", "static", "--tiers", file)
    file.write_text(OWN + 'overlap = "tiers"\n')
    overlapping = values(trace, "--policy", "static", "--tiers", file)
    assert overlapping["step_seconds"] < plain["step_seconds"]
    again = values(trace, "--policy", "static", "--tiers", file, "--overlap", "none")
    assert again["step_seconds"] == plain["step_seconds"]


@pytest.mark.parametrize("option", ["--noise", "--skew"])
def test_an_overlap_is_known_for_the_recorded_times_only(trace: Path, option: str) -> None:
    error = refused(trace, "--overlap", "compute", option, "0.1")
    assert "cannot be combined with --overlap compute" in error.message


def test_paged_tiers_have_no_variants(trace: Path) -> None:
    error = refused(trace, "--tiers", "nvme", "--overlap", "compute")
    assert "nvme is paged" in error.message
    assert values(trace, "--tiers", "nvme", "--overlap", "none")["overlap"] == "none"


def test_text_output(trace: Path) -> None:
    result = run(trace, "--fast", "50%")
    assert result.exit_code == 0, result.output
    assert "times all-fast" in result.output
    assert "steps of profile" in result.output


def test_the_bound_is_left_out_without_scipy(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_invalid_options_are_refused_with_a_one_line_error(
    trace: Path, options: list[str], code: str, named: str
) -> None:
    error = refused(trace, *options)
    assert error.code == code
    assert named in str(error)


def test_a_missing_or_truncated_trace_is_refused(tmp_path: Path, trace: Path) -> None:
    assert "can't read" in str(refused(tmp_path / "none.npz"))
    cut = tmp_path / "cut.npz"
    cut.write_bytes(trace.read_bytes()[:2000])
    assert "not a usable trace" in str(refused(cut))


def test_an_incomplete_tiers_table_is_refused(trace: Path, tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text(OWN.replace("slow_read_bytes_per_s = 10e9", ""))
    assert "slow_read_bytes_per_s" in str(refused(trace, "--tiers", file))
