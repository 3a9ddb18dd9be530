# SPDX-License-Identifier: Apache-2.0
"""The daemon's options and its check of the configuration.

tests/integration/test_daemon.py runs the daemon itself.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sentineld import __version__
from sentineld.base.errors import SentinelError
from sentineld.daemon import sentineld


def check(tmp_path: Path, config: str, *options: str) -> Result:
    file = tmp_path / "config.toml"
    file.write_text(config)
    return CliRunner().invoke(sentineld, ["--config", str(file), "--check", *options])


@pytest.mark.parametrize(
    ("config", "options"),
    [
        ("", ()),
        ('fast = "20%"\n', ("--tiers", "emulated:cxl")),
        ('[tiers]\nemulated = "optane"\n', ()),
    ],
)
def test_a_good_configuration_passes_without_a_word(
    tmp_path: Path, config: str, options: tuple[str, ...]
) -> None:
    result = check(tmp_path, config, *options)
    assert (result.exit_code, result.output) == (0, "")
    assert [path.name for path in tmp_path.iterdir()] == ["config.toml"]


@pytest.mark.parametrize(
    ("config", "options", "code", "said"),
    [
        ("colour = 1\n", (), "bad-config", "colour"),
        ("fast = \n", (), "bad-config", "config.toml"),
        ('policy = "autoo"\n', (), "bad-config", "policy: "),
        ('policy = "tpp"\n', (), "bad-config", "policy: "),
        ('[tiers]\nemulated = "tape"\n', (), "bad-config", "tape"),
        ('[tiers]\nemulated = "cxl"\nfast = [0]\n', (), "bad-config", "emulated"),
        ("", ("--tiers", "cxl"), "usage", "--tiers 'cxl'"),
        ("", ("--tiers", "emulated:"), "usage", "--tiers"),
        ("", ("--tiers", "emulated:tape"), "bad-config", "tape"),
    ],
)
def test_a_bad_one_is_refused_with_the_reason(
    tmp_path: Path, config: str, options: tuple[str, ...], code: str, said: str
) -> None:
    error = check(tmp_path, config, *options).exception
    assert isinstance(error, SentinelError), error
    assert error.code == code
    assert said in error.message


def test_a_configuration_that_is_named_must_exist(tmp_path: Path) -> None:
    result = CliRunner().invoke(sentineld, ["--config", str(tmp_path / "none.toml"), "--check"])
    assert isinstance(result.exception, SentinelError)
    assert result.exception.code == "bad-config"


def test_the_version_is_the_packages() -> None:
    result = CliRunner().invoke(sentineld, ["--version"])
    assert result.output == f"sentineld, version {__version__}\n"
