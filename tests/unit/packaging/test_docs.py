# SPDX-License-Identifier: Apache-2.0
"""The pages agree with the code and with each other."""

from __future__ import annotations

import re
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from docs.cli_page import cli_page
from docs.generate import page_is_current
from sentineld.config import Config, TierOverrides, load

ROOT = Path(__file__).parents[3]

PAGES = sorted(
    str(path.relative_to(ROOT)) for path in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]
)

MAKEFILES = [ROOT / "Makefile", ROOT / "systemd/install.mk", ROOT / "tests/tools.mk"]


def test_config_page_lists_every_key_with_its_default() -> None:
    text = (ROOT / "docs/config.md").read_text()
    rows = dict(re.findall(r"^\| `([\w.]+)` \| `([^`]*)` \|", text, re.MULTILINE))
    defaults = {f.name: getattr(Config(), f.name) for f in fields(Config) if f.name != "tiers"}
    overrides = {f"tiers.{f.name}": getattr(TierOverrides(), f.name) for f in fields(TierOverrides)}
    values = {key: tomllib.loads(f"value = {value}")["value"] for key, value in rows.items()}
    expected = {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in (defaults | overrides).items()
    }
    assert values == expected


def test_config_page_s_example_is_right(tmp_path: Path) -> None:
    text = (ROOT / "docs/config.md").read_text()
    (example,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    file = tmp_path / "config.toml"
    file.write_text(example)
    config = load(file)
    assert config.auto_attach
    assert config.tiers.slow == (2,)


def test_the_page_of_commands_is_up_to_date() -> None:
    assert page_is_current("reference/cli.md", cli_page()), "run `make docs`"


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    folder = (ROOT / page).parent
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", (ROOT / page).read_text()):
        assert (folder / target).exists(), target


@pytest.mark.parametrize("page", PAGES)
def test_make_targets_that_pages_name_exist(page: str) -> None:
    makefiles = "".join(path.read_text() for path in MAKEFILES)
    targets = set(re.findall(r"^([a-z-]+):", makefiles, re.MULTILINE))
    named = set(re.findall(r"(?:`|^)make ([a-z-]+)", (ROOT / page).read_text(), re.MULTILINE))
    assert named <= targets
