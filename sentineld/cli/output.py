# SPDX-License-Identifier: Apache-2.0
"""What verbs share: the daemon's address, --json, tables."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from sentineld.control.client import request, request_file

Function = TypeVar("Function", bound=Callable[..., Any])

JSON_SCHEMA = 1
LONG_TIMEOUT_S = 6 * 3600.0
"""A step of training may take minutes, and as many of them as are asked for have to pass; planning
may take twice as long as plan_timeout_s."""


@dataclass(frozen=True)
class Daemon:
    """The daemon that a command talks to."""

    socket: Path

    def ask(self, verb: str, **arguments: Any) -> Any:
        """The daemon's answer. Raises SentinelError."""
        return request(self.socket, verb, **arguments)

    def ask_long(self, verb: str, **arguments: Any) -> Any:
        """The answer to what may take as long as planning may. Raises SentinelError."""
        return request(self.socket, verb, LONG_TIMEOUT_S, **arguments)

    def ask_file(self, verb: str, **arguments: Any) -> tuple[Any, int]:
        """The daemon's answer and the descriptor of the file that comes with it, now the caller's.
        Raises SentinelError."""
        return request_file(self.socket, verb, LONG_TIMEOUT_S, **arguments)


def json_option(function: Function) -> Function:
    """The option --json."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(function)


def print_json(value: Any) -> None:
    """Print an answer with the schema's number."""
    click.echo(json.dumps({"schema": JSON_SCHEMA, **value}, indent=2))


def print_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print left-aligned columns."""
    cells = [[str(cell) for cell in row] for row in [header, *rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    for row in cells:
        click.echo(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        )
