# SPDX-License-Identifier: Apache-2.0
"""The verb doctor: a line or a JSON object for each check."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from sentineld.base.errors import EXIT_STATUS
from sentineld.cli.doctor import doctor
from sentineld.cli.main import sentinelctl
from sentineld.cli.output import Daemon
from sentineld.doctor.checks import CHECKS


def test_the_command_prints_a_line_or_json_for_each_check(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path / "none.sock")
    text = CliRunner().invoke(doctor, [], obj=daemon)
    assert len(text.output.splitlines()) == len(CHECKS)
    result = CliRunner().invoke(doctor, ["--json"], obj=daemon)
    answer = json.loads(result.output)
    failing = [check for check in answer["checks"] if check["status"] == "fail"]
    # No daemon answers at that socket, so at least the check of the daemon fails.
    assert failing[-1]["check"] == "daemon"
    assert result.exit_code == text.exit_code == EXIT_STATUS[failing[0]["code"]]


@pytest.mark.parametrize(("variable", "coloured"), [("", True), ("1", False)])
def test_no_color_is_respected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, coloured: bool
) -> None:
    monkeypatch.setenv("NO_COLOR", variable)
    command = ["--socket", str(tmp_path / "none.sock"), "doctor"]
    output = CliRunner().invoke(sentinelctl, command, color=True).output
    assert ("\x1b[" in output) is coloured
