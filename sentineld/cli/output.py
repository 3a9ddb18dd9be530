# SPDX-License-Identifier: Apache-2.0
"""The code that all verbs share: the connection to the daemon, --json, tables."""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeVar

import click

from sentineld.base.text import printable
from sentineld.control.client import request, request_file

Function = TypeVar("Function", bound=Callable[..., Any])

JSON_SCHEMA = 1
GAP = "  "
WORD_WIDTH_MAX = 24
"""If a table is wrapped, only words with more characters than this are broken."""
WRAPPED_WIDTH_MIN = 16
"""Smallest width, in characters, to which a column is narrowed. Columns that are not wider keep
their width."""
LONG_TIMEOUT_S = 6 * 3600.0
"""Timeout for verbs that wait for training steps or for planning. A step may take minutes. Planning
may take twice the setting plan_timeout_s (the plan and the spare plan). It begins only when fewer
other plans are being made than the setting plan_processes allows."""

BRIEF_TIMEOUT_S = 10.0
"""Timeout for requests that are repeated, so that a daemon that hangs delays nothing else."""


@dataclass(frozen=True)
class Daemon:
    """The daemon that a command connects to."""

    socket: Path

    def ask(self, verb: str, **arguments: Any) -> Any:
        """Send a verb and return the answer. Raises SentinelError."""
        return request(self.socket, verb, **arguments)

    def ask_briefly(self, verb: str, **arguments: Any) -> Any:
        """Like ask(), for a caller that asks again later: waits at most BRIEF_TIMEOUT_S. Raises
        SentinelError."""
        return request(self.socket, verb, BRIEF_TIMEOUT_S, **arguments)

    def ask_long(self, verb: str, **arguments: Any) -> Any:
        """Like ask(), for a verb that may take up to LONG_TIMEOUT_S. Raises SentinelError."""
        return request(self.socket, verb, LONG_TIMEOUT_S, **arguments)

    def ask_file(self, verb: str, **arguments: Any) -> tuple[Any, int]:
        """Like ask_long(), for a verb whose answer carries a file; returns (answer, descriptor).

        The caller owns the descriptor. Raises SentinelError.
        """
        return request_file(self.socket, verb, LONG_TIMEOUT_S, **arguments)


def json_option(function: Function) -> Function:
    """Decorator that adds the option --json."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(function)


def print_json(value: Any, one_line: bool = False) -> None:
    """Print an object as JSON, with the schema's version."""
    click.echo(json.dumps({"schema": JSON_SCHEMA, **value}, indent=None if one_line else 2))


def session_title(session: Mapping[str, Any]) -> str:
    """A printable name of a session's group or process. session: the session's entry in the
    answer to `status`."""
    return printable(session.get("group", "")) or f"process {session['pid']}"


def print_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table with left-aligned columns. Characters that are not printable become "?",
    because some cells contain names that users choose.

    If the terminal is narrower than the table, the text of the widest columns is wrapped. If the
    table is still too wide, each cell is printed on a line of its own. If the environment variable
    COLUMNS is set, its value is used as the width. Without it, output that does not go to a
    terminal is not wrapped.
    """
    cells = [[printable(str(cell)) for cell in row] for row in [header, *rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    columns = terminal_columns()
    surplus = sum(widths) + len(GAP) * (len(widths) - 1) - columns if columns else 0
    if surplus > 0 and not _narrow(widths, cells, surplus):
        _print_records(header, cells[1:], columns)
        return
    for row in cells:
        wrapped = [
            textwrap.wrap(cell, width) if len(cell) > width else [cell]
            for cell, width in zip(row, widths, strict=True)
        ]
        for line in zip_longest(*wrapped, fillvalue=""):
            padded = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
            click.echo(GAP.join(padded).rstrip())


def _narrow(widths: list[int], cells: list[list[str]], surplus: int) -> bool:
    """Reduce the largest widths by `surplus` in total; returns whether this is possible."""
    words = [
        max((len(word) for cell in column for word in cell.split()), default=0)
        for column in zip(*cells, strict=True)
    ]
    spare = [
        width - max(min(word, WORD_WIDTH_MAX), min(width, WRAPPED_WIDTH_MIN))
        for width, word in zip(widths, words, strict=True)
    ]
    if sum(spare) < surplus:
        return False
    for _ in range(surplus):
        widest = max((i for i, room in enumerate(spare) if room), key=widths.__getitem__)
        widths[widest] -= 1
        spare[widest] -= 1
    return True


def _print_records(header: Sequence[str], rows: Sequence[Sequence[str]], columns: int) -> None:
    """Print a line "NAME  value" for each cell, and an empty line between rows."""
    width = max(map(len, header))
    for index, row in enumerate(rows):
        if index:
            click.echo()
        for name, cell in zip(header, row, strict=True):
            lead = name.ljust(width) + GAP
            click.echo(
                textwrap.fill(
                    cell,
                    max(columns, len(lead) + 1),
                    initial_indent=lead,
                    subsequent_indent=" " * len(lead),
                )
                or lead.rstrip()
            )


def terminal_columns() -> int:
    """The variable COLUMNS or, if it is not set, the terminal's width on stdout; 0: unknown."""
    if sys.stdout.isatty() or "COLUMNS" in os.environ:
        return shutil.get_terminal_size((0, 0)).columns
    return 0
