# SPDX-License-Identifier: Apache-2.0
"""The report of the demo's first part, and the rules that check the report's measurements."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.demo.paging import report, rules
from tests.demo.paging.possible import LeftOut

MIB = 1 << 20
NO_SWAP = LeftOut("Linux swap", "the machine swaps to /dev/sda2", "run `swapoff -a` first")


def contestant(step_s: float, **changed: Any) -> dict[str, Any]:
    """Measurements of a contestant in three rounds; the machine is slow in the last round."""
    turn = {
        "cpu_s": 1.0,
        "disk_bytes_read": 300.0 * MIB,
        "disk_bytes_written": 200.0 * MIB,
        "late_faults": 12.0,
        "peak_bytes": 450 * MIB,
    }
    return {
        "note": "",
        "limit_bytes": 500 * MIB,
        "losses_equal": True,
        "losses_compared": 9,
        "turns": [{"step_s": pace * step_s} | turn for pace in (0.9, 1.0, 7.0)],
        **changed,
    }


def paging(**changed: int) -> dict[str, int]:
    return {"budget_pages": 100, "frames": 100, "overruns": 0, "write_error": 0, **changed}


def made(left_out: tuple[LeftOut, ...] = (), **changed: dict[str, Any]) -> dict[str, Any]:
    contestants = {
        "ram": contestant(1.0, limit_bytes=None),
        "swap": contestant(5.0),
        "auto": contestant(1.25, paging=paging()),
    }
    done = {
        "model": "toy",
        "fraction": 0.3,
        "tensor_peak_bytes": 800 * MIB,
        "resident_bytes": 1000 * MIB,
        "fast_bytes": 100 * 4096,
        "contestants": contestants | changed,
    }
    return report.assemble(done, left_out, Path("/mnt/disk"), 100.0)


def failing(result: dict[str, Any]) -> list[str]:
    return [verdict.rule for verdict in rules.check(result) if not verdict.holds]


def test_a_good_report_passes() -> None:
    result = made()
    assert failing(result) == []
    text = report.markdown(result, rules.check(result))
    assert "1.25 times as long under sentineld and 5.00 times as long under Linux swap" in text
    (line,) = [line for line in text.splitlines() if line.startswith("| sentineld")]
    cells = [cell.strip() for cell in line.split("|")[2:]]
    assert cells[:7] == ["500 MiB", "450 MiB", "1.25 s", "1.25 x", "300 MiB", "200 MiB", "12"]


def test_a_busy_machine_is_reported() -> None:
    result = made()
    assert report.busy(result) == ""
    for turn in result["contestants"]["ram"]["turns"]:
        turn["cpu_s"] = 0.15 * turn["step_s"]
    assert "only 15%" in report.busy(result)
    assert report.busy(result) in report.markdown(result, rules.check(result))


def test_what_was_left_out_is_reported() -> None:
    result = made((NO_SWAP,))
    del result["contestants"]["swap"]
    assert failing(result) == []
    text = report.markdown(result, rules.check(result))
    assert f"- {NO_SWAP}" in text
    assert "| Linux swap" not in text
    assert "swapoff -a" in str(NO_SWAP)


def test_without_cgroups_no_limit_is_checked() -> None:
    result = made(auto=contestant(1.25, limit_bytes=None, paging=paging()))
    assert not any(rule.rule.startswith("sentineld: within the") for rule in rules.check(result))
    assert "| sentineld  |         none |" in report.markdown(result, rules.check(result))


def test_a_disk_without_counters_gets_no_figures() -> None:
    auto = contestant(1.25, paging=paging())
    for turn in auto["turns"]:
        turn["disk_bytes_read"] = turn["disk_bytes_written"] = None
    text = report.rows(made(auto=auto))
    (line,) = [line for line in text.splitlines() if line.startswith("| sentineld")]
    assert [cell.strip() for cell in line.split("|")][6:8] == ["-", "-"]


@pytest.mark.parametrize(
    ("rule", "changed"),
    [
        ("every training ran", {"auto": {"note": "no plan", "limit_bytes": 1}}),
        ("sentineld: same losses", {"auto": {"losses_equal": False}}),
        ("Linux swap: same losses", {"swap": {"losses_compared": 0}}),
        ("sentineld: within the memory limit", {"auto": {"limit_bytes": 450 * MIB - 1}}),
        ("Linux swap: within the memory limit", {"swap": {"limit_bytes": 450 * MIB - 1}}),
        ("sentineld: tensors within", {"auto": {"paging": paging(frames=101)}}),
        ("sentineld: tensors within", {"auto": {"paging": paging(budget_pages=101)}}),
        ("sentineld: the pager never", {"auto": {"paging": paging(overruns=1)}}),
        ("sentineld: the pager never", {"auto": {"paging": paging(write_error=28)}}),
    ],
)
def test_a_broken_training_fails_its_rule(rule: str, changed: dict[str, dict[str, Any]]) -> None:
    result = made()
    for name, values in changed.items():
        result["contestants"][name] |= values
    (failed,) = failing(result)
    assert failed.startswith(rule)


def test_files(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from tests.demo.paging import picture

    result = made((NO_SWAP,))
    report.save(result, rules.check(result), tmp_path)
    picture.draw(result, tmp_path / "paging.png")
    saved = json.loads((tmp_path / "paging.json").read_text())
    assert all(rule["holds"] for rule in saved["rules"])
    assert saved["contestants"]["swap"]["over_ram"] == 5.0
    assert (tmp_path / "paging.md").read_text().startswith("# sentineld demo")
    assert (tmp_path / "paging.png").read_bytes().startswith(b"\x89PNG")


def test_a_machine_that_cannot_run_it(tmp_path: Path) -> None:
    """No figures of an earlier run remain."""
    for name in report.FILES:
        (tmp_path / name).write_text("earlier")
    report.remove(tmp_path)
    report.save_reason("this kernel has no /dev/userfaultfd (use Linux 6.8 or later)", tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["paging.json", "paging.md"]
    assert "use Linux 6.8" in (tmp_path / "paging.md").read_text()
    assert "use Linux 6.8" in json.loads((tmp_path / "paging.json").read_text())["cannot_run"]
