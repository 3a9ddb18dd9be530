# SPDX-License-Identifier: Apache-2.0
"""Help, man pages and the page of commands agree; completions work."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from docs.command_files import SECTIONS, command_files
from docs.commands import PROGRAMS, WIDTH, contexts

ROOT = Path(__file__).parents[3]
FILES = command_files()
PAGE = (ROOT / "docs/reference/cli.md").read_text()
SECTION_OF = dict(re.findall(r"^## (sentinel[^\n]*)\n\n```\n(.*?)\n```$", PAGE, re.M | re.S))


def words(context: click.Context) -> list[str]:
    """The words with which a user calls a verb, without arguments: ["sentinelctl", "status"]."""
    before = [] if context.parent is None else words(context.parent)
    return [*before, str(context.info_name)]


COMMANDS = {" ".join(words(one)): one for program in PROGRAMS for one in contexts(program)}
GROUP_ARGUMENTS = {"sentinelctl report": ["trace.npz"]}
"""Arguments of groups, which come before the group's verb."""


def shown_help(command: str) -> str:
    """The output of the command with --help."""
    program, *arguments = command.split()
    found: click.Command | None = PROGRAMS[program]
    for verb in arguments:
        assert isinstance(found, click.Group)
        found = found.get_command(click.Context(found), verb)
    # click caches the help option. If another test has run the verb without its group, the option
    # lacks the group's -h.
    vars(found)["_help_option"] = None
    for group, between in GROUP_ARGUMENTS.items():
        if command.startswith(f"{group} "):
            arguments[1:1] = between
    result = CliRunner().invoke(
        PROGRAMS[program],
        [*arguments, "--help"],
        prog_name=program,
        terminal_width=WIDTH,
        max_content_width=WIDTH,
    )
    assert result.exit_code == 0, result.output
    return result.output


def man_page(command: str) -> str:
    name = command.replace(" ", "-")
    section = SECTIONS[command.split()[0]]
    return FILES[f"man/man{section}/{name}.{section}"]


def plain(text: str) -> str:
    """The words of a text, without line breaks and roff's escapes and macros."""
    unescaped = text.replace("\\-", "-").replace("\\&", "").replace("\\e", "\\")
    return " ".join(re.sub(r"^\.(\w+)", "", unescaped, flags=re.M).split())


@pytest.mark.parametrize("command", COMMANDS)
def test_help_man_page_and_the_page_of_commands_agree(command: str) -> None:
    context = COMMANDS[command]
    assert shown_help(command).strip() == SECTION_OF[context.command_path].strip()
    shown, page = plain(shown_help(command)), plain(man_page(command))
    paragraphs = (context.command.help or "").split("\n\n")
    options = [
        part
        for one in context.command.get_params(context)
        if not isinstance(one, click.Argument)
        for part in one.get_help_record(context) or ()
    ]
    assert len(options) >= 2
    for part in [*paragraphs, *options]:
        assert plain(part) in shown
        assert plain(part) in page


def test_the_page_and_the_man_pages_have_no_other_commands() -> None:
    assert set(SECTION_OF) == {one.command_path for one in COMMANDS.values()}
    assert len([name for name in FILES if name.startswith("man/")]) == len(COMMANDS)


def test_groff_formats_the_man_pages_without_warnings(tmp_path: Path) -> None:
    pages = [tmp_path / Path(name).name for name in FILES if name.startswith("man/")]
    for page, name in zip(pages, (n for n in FILES if n.startswith("man/")), strict=True):
        page.write_text(FILES[name])
    command = ["groff", "-man", "-ww", "-Tutf8", "-z", *map(str, pages)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_bash_completes_verbs_and_options(tmp_path: Path) -> None:
    program = tmp_path / "sentinelctl"
    program.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        "from sentineld.cli import main\nmain()\n"
    )
    program.chmod(0o755)
    script = tmp_path / "completion"
    script.write_text(FILES["bash-completion/completions/sentinelctl"])
    for typed, found in (("rec", "record"), ("record --st", "--steps")):
        line = ["sentinelctl", *typed.split()]
        commands = (
            f"PATH={tmp_path}:$PATH; source {script}; COMP_WORDS=({' '.join(line)}); "
            f"COMP_CWORD={len(line) - 1}; _sentinelctl_completion sentinelctl; "
            'echo "${COMPREPLY[@]}"'
        )
        done = subprocess.run(
            ["bash", "--norc", "-c", commands], capture_output=True, text=True, check=True
        )
        assert done.stdout.split() == [found], done.stderr


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_completions_of_other_shells_ask_the_program(shell: str) -> None:
    (script,) = [text for name, text in FILES.items() if shell in name and "ctl" in name]
    assert f"_SENTINELCTL_COMPLETE={shell}_complete" in script
