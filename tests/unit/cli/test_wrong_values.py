# SPDX-License-Identifier: Apache-2.0
"""Every option of every verb gets values of wrong types and sizes. The verb accepts the value or
refuses it with an error message, but never fails with an unexpected exception."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from sentineld.base.errors import SentinelError
from sentineld.cli.main import sentinelctl
from sentineld.profile.trace_file import save_trace
from tests.unit.traces import recorded

TRACE = "trace.npz"
ARGUMENTS = {
    "advise": f"{TRACE} --tiers cxl --fast 50% --policy first-touch --no-second --jobs 1",
    "attach": "7",
    "calibrate": "--dry-run --size 1MiB",
    "detach": "7",
    "meter": "7",
    "plan show": "7",
    "record": "7 -o recorded.npz",
    "report html": "-o page.html --policy first-touch",
    "report trace-export": "-o export.json",
    "simulate": f"{TRACE} --policy first-touch --no-bound --steps 2",
    "tensors": "7",
}
"""Arguments with which a verb does its work in a short time. The option with the wrong value
follows them."""

NUMBERS = ("-1", "0", "0.5", "nan", "-inf", "1e999", "\N{ARABIC-INDIC DIGIT ONE}", "9" * 30)
TEXTS = ("", "x", "5%%", "a" * 5000, "\N{SNOWMAN}\n", "/", ".")
TIRING = {("simulate", "--steps"), ("advise", "--jobs"), ("calibrate", "--threads")}
"""Options that make a verb take a long time if the number is large."""
MEASURED = {("advise", "--disk"): ("/", ".")}
"""Valid values that make a verb take seconds; they are not tried."""


def verbs(
    command: click.Command = sentinelctl, name: str = ""
) -> Iterator[tuple[str, click.Command]]:
    """The name and the command of each verb. A name can have several words."""
    if not isinstance(command, click.Group):
        yield name, command
        return
    context = click.Context(command)
    for word in command.list_commands(context):
        found = command.get_command(context, word)
        assert found is not None
        yield from verbs(found, f"{name} {word}".strip())


def options() -> Iterator[tuple[str, click.Option]]:
    """Each option that takes a value, preceded by the name of its verb."""
    for name, command in verbs():
        for parameter in command.params:
            if isinstance(parameter, click.Option) and not parameter.is_flag:
                yield name, parameter


OPTIONS = {
    name: [option for _, option in found] for name, found in groupby(options(), lambda one: one[0])
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("verbs")
    save_trace(recorded(), made / TRACE)
    return made


def status(folder: Path, name: str, option: str) -> int:
    """Run a verb with this option, without a daemon; return its exit status."""
    words = name.split()
    if words[0] == "report":
        words.insert(1, TRACE)
    words += [*ARGUMENTS.get(name, "").split(), option]
    if name == "run":
        words.append("true")
    result = CliRunner().invoke(sentinelctl, ["--socket", str(folder / "none.sock"), *words])
    refusals = (SystemExit, SentinelError, click.ClickException)
    assert result.exception is None or isinstance(result.exception, refusals), words
    return result.exit_code


def test_the_options_are_found() -> None:
    assert sum(map(len, OPTIONS.values())) > 40
    assert {"attach", "plan show", "report html", "run"} <= OPTIONS.keys()
    assert ARGUMENTS.keys() <= dict(verbs()).keys()


@pytest.mark.parametrize("name", OPTIONS)
def test_a_value_is_accepted_or_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(folder)
    for option in OPTIONS[name]:
        key = name, option.opts[-1]
        for value in (*NUMBERS, *TEXTS):
            if value not in MEASURED.get(key, ()) and not (len(value) == 30 and key in TIRING):
                status(folder, name, f"{key[1]}={value}")


@pytest.mark.parametrize("name", OPTIONS)
def test_a_number_and_a_choice_are_no_other_text(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(folder)
    kinds = click.types.IntParamType, click.types.FloatParamType, click.Choice
    for option in OPTIONS[name]:
        if isinstance(option.type, kinds):
            for value in TEXTS:
                assert status(folder, name, f"{option.opts[-1]}={value}") == 2
