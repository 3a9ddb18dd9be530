# SPDX-License-Identifier: Apache-2.0
"""Writes the man pages and the shell completions of sentinelctl and sentineld, for `make install`:
python3 -m docs.command_files FOLDER, where FOLDER is PREFIX/share.

Neither can differ from `--help`: the man pages are made from the commands' click objects, and the
completions run the program to list its verbs and options.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from inspect import cleandoc
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from docs.commands import PROGRAMS, contexts, subcommands
from sentineld import __version__
from sentineld.base.errors import EXIT_STATUS

SECTIONS = {"sentinelctl": 1, "sentineld": 8}
COMPLETIONS = {
    "bash": "bash-completion/completions/{}",
    "zsh": "zsh/site-functions/_{}",
    "fish": "fish/vendor_completions.d/{}.fish",
}
"""For each shell, the file below PREFIX/share in which it looks for a program's completion."""


def command_files() -> dict[str, str]:
    """The text of each file, by its path below PREFIX/share."""
    files = {}
    for program, command in PROGRAMS.items():
        section = SECTIONS[program]
        for context in contexts(program):
            name = _page_name(context)
            files[f"man/man{section}/{name}.{section}"] = man_page(context, section)
        for shell, path in COMPLETIONS.items():
            kind = get_completion_class(shell)
            assert kind is not None
            variable = f"_{program.upper()}_COMPLETE"
            script = kind(command, {}, program, variable)
            files[path.format(program)] = script.source_template % script.source_vars()
    return files


def man_page(context: click.Context, section: int) -> str:
    """The man page of a command, in the macros of man(7)."""
    lines = [
        f'.TH "{_page_name(context).upper()}" {section} "" "sentineld {__version__}" "sentineld"',
        ".SH NAME",
        f"{_roff(_page_name(context))} \\- {_roff(_summary(context.command))}",
        ".SH SYNOPSIS",
        f".B {_roff(context.command_path)}",
        _roff(" ".join(context.command.collect_usage_pieces(context))),
        ".SH DESCRIPTION",
        *_paragraphs(context.command),
        ".SH OPTIONS",
        *_definitions(_options(context)),
    ]
    verbs = subcommands(context)
    if verbs:
        summaries = [(name, _summary(command) + ".") for name, command in verbs]
        lines += [".SH COMMANDS", *_definitions(summaries)]
    if context.parent is None:
        statuses = [(str(status), code) for code, status in EXIT_STATUS.items()]
        lines += [".SH EXIT STATUS", *_definitions([("0", "success"), *statuses])]
    return "\n".join([*lines, ".SH SEE ALSO", _see_also(context, verbs)]) + "\n"


def _page_name(context: click.Context) -> str:
    name = str(context.info_name)
    return name if context.parent is None else f"{_page_name(context.parent)}-{name}"


def _summary(command: click.Command) -> str:
    return command.get_short_help_str(1000).removesuffix(".")


def _paragraphs(command: click.Command) -> Iterator[str]:
    for index, paragraph in enumerate(cleandoc(command.help or "").split("\n\n")):
        if index:
            yield ".PP"
        yield _roff(" ".join(paragraph.split()))


def _options(context: click.Context) -> list[tuple[str, str]]:
    # Arguments are left out: they have no help of their own, and older releases of click do not
    # list them.
    options = [
        one for one in context.command.get_params(context) if not isinstance(one, click.Argument)
    ]
    records = [one.get_help_record(context) for one in options]
    return [record for record in records if record is not None]


def _definitions(rows: list[tuple[str, str]]) -> Iterator[str]:
    for name, text in rows:
        yield from (".TP", f".B {_roff(name)}", _roff(text))


def _see_also(context: click.Context, verbs: list[tuple[str, click.Command]]) -> str:
    pages = [f"{_page_name(context)}-{name}(1)" for name, _ in verbs]
    if context.parent is not None:
        pages.append(f"{_page_name(context.parent)}(1)")
    programs = [f"{name}({SECTIONS[name]})" for name in SECTIONS if name != context.command_path]
    return _roff(", ".join(dict.fromkeys([*pages, *programs])))


def _roff(text: str) -> str:
    """Escape a line of text for roff."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + escaped if escaped.startswith((".", "'")) else escaped


def main() -> None:
    """Write the files into the folder that the first argument names."""
    for name, text in command_files().items():
        file = Path(sys.argv[1]) / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


if __name__ == "__main__":
    main()
