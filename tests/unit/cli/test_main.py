# SPDX-License-Identifier: Apache-2.0
"""The command group lists all verbs and imports only the requested one."""

from __future__ import annotations

import subprocess
import sys

import pytest
from click.testing import CliRunner

from sentineld.cli.main import VERBS, sentinelctl


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_has_help(verb: str) -> None:
    answer = CliRunner().invoke(sentinelctl, [verb, "--help"])
    assert answer.exit_code == 0
    assert f"sentinelctl {verb}" in answer.output


def test_help_lists_all_verbs() -> None:
    lines = CliRunner().invoke(sentinelctl, ["--help"]).output.splitlines()
    listed = [line.split()[0] for line in lines[lines.index("Commands:") + 1 :]]
    assert listed == sorted(VERBS)


def test_an_unknown_verb_is_a_usage_error() -> None:
    answer = CliRunner().invoke(sentinelctl, ["stats"])
    assert answer.exit_code == 2
    assert "No such command 'stats'" in answer.output


def test_status_does_not_import_numpy() -> None:
    script = (
        "import sys; from sentineld.cli.main import sentinelctl\n"
        "sentinelctl(['status', '--help'], standalone_mode=False)\n"
        "assert 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
