# SPDX-License-Identifier: Apache-2.0
"""Output of the verbs `config show` and `version`."""

from __future__ import annotations

import json
import tomllib
from dataclasses import asdict
from pathlib import Path

import pytest

from sentineld import __version__
from sentineld.config import Config, load
from tests.unit.cli.answering import answering


@pytest.fixture
def main(tmp_path: Path) -> Path:
    file = tmp_path / "config.toml"
    file.write_text('fast = "30%"\n[tiers]\nfast = [0, 1]\nemulated = "a \\"b\\" \\u00e9"\n')
    return file


def test_the_settings_are_printed_as_a_config_file(tmp_path: Path, main: Path) -> None:
    with answering(tmp_path) as ctl:
        output = ctl.output("config", "show", "--config", str(main))
    again = tmp_path / "again.toml"
    again.write_text(output)
    assert load(again) == load(main)
    assert list(tomllib.loads(output)) == list(asdict(Config()))


def test_each_setting_has_its_origin(tmp_path: Path, main: Path) -> None:
    with answering(tmp_path) as ctl:
        command = ("config", "show", "--config", str(main), "--origin")
        output = ctl.output(*command)
        answer = json.loads(ctl.output(*command, "--json"))
        assert "origins" not in json.loads(ctl.output(*command[:-1], "--json"))
    assert f'fast = "30%"  # {main}\n' in output
    assert f"fast = [0, 1]  # {main}\n" in output
    assert 'ebpf = "auto"  # default\n' in output
    assert set(answer["origins"]) == {"fast", "tiers.fast", "tiers.emulated", "attach"}
    assert answer["config"]["tiers"]["fast"] == [0, 1]


def test_each_rule_is_printed_with_its_origin(tmp_path: Path, main: Path) -> None:
    with main.open("a") as file:
        file.write('[[attach]]\nuser = "alice"\nfast = "40%"\n[[attach]]\nmanage = false\n')
    with answering(tmp_path) as ctl:
        command = ("config", "show", "--config", str(main))
        output = ctl.output(*command)
        with_origins = ctl.output(*command, "--origin")
        answer = json.loads(ctl.output(*command, "--origin", "--json"))
    again = tmp_path / "again.toml"
    again.write_text(output)
    assert load(again) == load(main)
    assert list(tomllib.loads(output)) == list(asdict(Config()))
    rule = '[[attach]]  # {}: attach rule 1\nuser = "alice"\nmanage = true\nfast = "40%"\n'
    assert rule.format(main) in with_origins
    assert answer["origins"]["attach"] == [f"{main}: attach rule {at}" for at in (1, 2)]
    assert answer["config"]["attach"][1]["manage"] is False


def test_a_bad_setting_is_refused(tmp_path: Path, main: Path) -> None:
    main.write_text("fats = 1\n")
    with answering(tmp_path) as ctl:
        assert ctl.refused("config", "show", "--config", str(main)).code == "bad-config"


def test_version_has_the_daemons_if_it_runs(tmp_path: Path) -> None:
    with answering(tmp_path, status=lambda _: {"version": "9.9"}) as ctl:
        ours, running = ctl.output("version").splitlines()
        answer = json.loads(ctl.output("version", "--json"))
    assert ours.startswith(f"sentinelctl {__version__}, Python 3.")
    assert running == "sentineld 9.9"
    assert (answer["sentinelctl"], answer["sentineld"]) == (__version__, "9.9")
    running = ctl.output("version").splitlines()[1]
    assert running.startswith("sentineld unknown: no daemon answers at ")
    assert json.loads(ctl.output("version", "--json"))["sentineld"] is None
