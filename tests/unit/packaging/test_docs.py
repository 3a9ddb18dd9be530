# SPDX-License-Identifier: Apache-2.0
"""The documentation agrees with the code, and all its links resolve."""

from __future__ import annotations

import re
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from docs.cli_page import cli_page
from docs.generate import GENERATED, page_is_current
from sentineld.config import RELOADABLE, Config, TierOverrides, load
from sentineld.model.attach_rule import AttachRule

ROOT = Path(__file__).parents[3]

PAGES = sorted(
    str(path.relative_to(ROOT)) for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
)

COLUMNS_MAX = 100

WRITTEN = [page for page in PAGES if page not in GENERATED]


MAKEFILES = [ROOT / "Makefile", *sorted((ROOT / "systemd").glob("*.mk")), ROOT / "tests/tools.mk"]


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


def test_the_config_page_lists_the_keys_that_need_a_restart() -> None:
    text = (ROOT / "docs/config.md").read_text()
    listed = text.partition("need a restart:")[2].partition(".\n")[0]
    keys = set(re.findall(r"`(\w+)`", listed))
    assert keys == {f.name for f in fields(Config)} - RELOADABLE - {"tiers"}
    assert "whole table `[tiers]`" in listed


def test_the_config_pages_examples_load(tmp_path: Path) -> None:
    text = (ROOT / "docs/config.md").read_text()
    rules, example = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    file = tmp_path / "config.toml"
    file.write_text(example)
    config = load(file)
    assert config.auto_attach
    assert config.tiers.slow == (2,)
    file.write_text(rules)
    assert [rule.user for rule in load(file).attach] == ["root", "", "", "alice"]


def test_the_config_page_lists_every_key_of_a_rule() -> None:
    text = (ROOT / "docs/config.md").read_text()
    table = text.partition("| Key of a rule |")[2].partition("\n\n")[0]
    keys = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert keys == [f.name for f in fields(AttachRule) if f.name != "origin"]


def test_the_cli_page_is_up_to_date() -> None:
    assert page_is_current("reference/cli.md", cli_page()), "run `make docs`"


@pytest.mark.parametrize("page", PAGES)
def test_relative_links_resolve(page: str) -> None:
    folder = (ROOT / page).parent
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", (ROOT / page).read_text()):
        assert (folder / target).exists(), target


def anchors_of(page: Path) -> set[str]:
    """The anchors of a page's headings, as common Markdown renderers generate them."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    words = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings]
    return {heading.replace(" ", "-") for heading in words}


@pytest.mark.parametrize("page", WRITTEN)
def test_anchors_of_links_exist(page: str) -> None:
    for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", (ROOT / page).read_text()):
        linked = (ROOT / page).parent / target if target else ROOT / page
        assert anchor in anchors_of(linked), f"{target}#{anchor}"


@pytest.mark.parametrize("page", WRITTEN)
def test_lines_are_wrapped(page: str) -> None:
    """Only lines of tables and code blocks may be longer than COLUMNS_MAX."""
    text = re.sub(r"```.*?```", "", (ROOT / page).read_text(), flags=re.DOTALL)
    wide = [
        line for line in text.splitlines() if len(line) > COLUMNS_MAX and not line.startswith("|")
    ]
    assert not wide


@pytest.mark.parametrize("page", WRITTEN)
def test_no_line_begins_with_a_comment(page: str) -> None:
    # Markdown ends the paragraph before a line that begins with <!--, and passes the line through
    # unformatted.
    assert not re.search(r"^ *<!--", (ROOT / page).read_text(), re.MULTILINE)


@pytest.mark.parametrize("page", PAGES)
def test_files_that_pages_name_exist(page: str) -> None:
    files = [
        "/" + path.relative_to(ROOT).as_posix()
        for folder in ("sentineld", "kmod", "bpf", "docs", "systemd", "tests")
        for path in (ROOT / folder).rglob("*.*")
    ]
    named = re.findall(r"`([\w./-]*\w\.(?:py|c|h))`", (ROOT / page).read_text())
    missing = {
        name
        for name in named
        if not any(file.endswith("/" + name.removeprefix("../")) for file in files)
    }
    assert missing <= HYPOTHETICAL


@pytest.mark.parametrize("page", PAGES)
def test_functions_are_in_the_files_that_pages_name(page: str) -> None:
    named = re.findall(r"`([\w.]+)\(\)` in\s`([\w/.]+)`", (ROOT / page).read_text())
    for function, name in named:
        files = [
            path
            for folder in ("sentineld", "kmod", "tests")
            for path in (ROOT / folder).rglob(Path(name).name)
            if path.as_posix().endswith(f"/{name}")
        ]
        # A definition has the name at the beginning of a line or after `def` or a type.
        definition = rf"^(?: *def |\w[\w *]*?\b){function.split('.')[-1]}\("
        assert any(re.search(definition, path.read_text(), re.MULTILINE) for path in files), (
            function,
            name,
        )


HYPOTHETICAL = {"train.py", "NAME.py", "rivals/NAME.py", "rivals/test_NAME.py"} | {
    f"{folder}/{package}/{name}.py"
    for package in ("policies", "observe")
    for folder, name in (("sentineld", "NAME"), ("tests/unit", "test_NAME"))
}
"""Files that pages name but the repository lacks, because users or contributors write them."""


@pytest.mark.parametrize("page", PAGES)
def test_documented_make_targets_exist(page: str) -> None:
    makefiles = "".join(path.read_text() for path in MAKEFILES)
    targets = set(re.findall(r"^([a-z-]+):", makefiles, re.MULTILINE))
    named = set(re.findall(r"(?:`|^)make ([a-z-]+)", (ROOT / page).read_text(), re.MULTILINE))
    assert named <= targets
