# SPDX-License-Identifier: Apache-2.0
"""The command group lists all verbs, but imports only the module of the requested verb."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from sentineld.cli.main import VERBS, sentinelctl


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_has_help(verb: str) -> None:
    answer = CliRunner().invoke(sentinelctl, [verb, "--help"])
    assert answer.exit_code == 0
    assert f"sentinelctl {verb}" in answer.output


def test_help_lists_all_verbs_with_their_summaries() -> None:
    output = CliRunner().invoke(sentinelctl, ["--help"], terminal_width=200).output
    lines = output[output.index("Commands:") :].splitlines()[1:]
    assert [line.split(maxsplit=1) for line in lines] == [
        [name, VERBS[name][1]] for name in sorted(VERBS)
    ]


@pytest.mark.parametrize("verb", VERBS)
def test_the_summary_is_the_first_sentence_of_the_help(verb: str) -> None:
    command = sentinelctl.get_command(click.Context(sentinelctl), verb)
    assert command is not None
    assert command.get_short_help_str(1000) == VERBS[verb][1]


def test_verbs_and_options_are_completed() -> None:
    context = click.Context(sentinelctl, info_name="sentinelctl")
    for typed, completed in (("re", ["record", "report"]), ("--so", ["--socket"]), ("x", [])):
        found = sentinelctl.shell_complete(context, typed)
        assert [item.value for item in found] == completed


def test_an_unknown_verb_is_a_usage_error() -> None:
    answer = CliRunner().invoke(sentinelctl, ["stats"])
    assert answer.exit_code == 2
    assert "No such command 'stats'" in answer.output


@pytest.mark.parametrize("arguments", [["status", "--help"], ["--help"]])
def test_common_commands_do_not_import_numpy(arguments: list[str]) -> None:
    script = (
        "import sys; from sentineld.cli.main import sentinelctl\n"
        f"sentinelctl({arguments}, standalone_mode=False)\n"
        "assert 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
