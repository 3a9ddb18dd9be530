# SPDX-License-Identifier: Apache-2.0
"""The code that all verbs share: the connection to the daemon, --json, tables."""

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
"""Timeout for verbs that wait for training steps or for planning. A step may take minutes. Planning
may take twice plan_timeout_s (the plan and the spare plan), and it begins only when one of the
plan_processes is free."""


@dataclass(frozen=True)
class Daemon:
    """The daemon that a command connects to."""

    socket: Path

    def ask(self, verb: str, **arguments: Any) -> Any:
        """Send a verb and return the answer. Raises SentinelError."""
        return request(self.socket, verb, **arguments)

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


def print_json(value: Any) -> None:
    """Print an object as JSON, with the schema's version."""
    click.echo(json.dumps({"schema": JSON_SCHEMA, **value}, indent=2))


def print_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table with left-aligned columns."""
    cells = [[str(cell) for cell in row] for row in [header, *rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    for row in cells:
        click.echo(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        )
