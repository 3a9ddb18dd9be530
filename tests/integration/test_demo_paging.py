# SPDX-License-Identifier: Apache-2.0
"""The first part of the demo with a small model, real daemons and a real memory limit.

Linux swap is left out, because enabling it would affect tests that run at the same time.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.traces import ROOT
from tests.demo.paging.__main__ import IMPOSSIBLE

pytest.importorskip("torch")


@pytest.mark.long
def test_the_first_part(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.demo.paging", "--without-swap", "--rounds", "2"]
    folders = ["--folder", str(ROOT / "build"), "--output", str(tmp_path)]
    done = subprocess.run(
        [*command, *folders, "--model", "perceptron"], capture_output=True, text=True, cwd=ROOT
    )
    if done.returncode == IMPOSSIBLE:
        pytest.skip(done.stderr)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    report = json.loads((tmp_path / "paging.json").read_text())
    assert set(report["contestants"]) == {"ram", "auto"}
    assert all(rule["holds"] for rule in report["rules"])
    assert report["contestants"]["auto"]["paging"]["bytes_read"] > 0
    assert (tmp_path / "paging.png").stat().st_size > 0
    assert "Linux swap: left out" in (tmp_path / "paging.md").read_text()
    assert not list((ROOT / "build").glob("demo-*"))
