# SPDX-License-Identifier: Apache-2.0
"""The code that all verbs share: tables, JSON and the connection to the daemon."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from sentineld.base.errors import SentinelError
from sentineld.cli.output import JSON_SCHEMA, Daemon, json_option, print_json, print_table

WORDS = st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=6)


def test_columns_begin_below_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("PID", "STATE", "REASON"), [(7, "managed", ""), (4242, "ended", "it exited")])
    assert capsys.readouterr().out == (
        "PID   STATE    REASON\n"
        "7     managed\n"
        "4242  ended    it exited\n"
    )  # fmt: skip


@given(st.lists(st.tuples(WORDS, WORDS, WORDS), max_size=5))
def test_every_cell_can_be_read_back(rows: list[tuple[str, str, str]]) -> None:
    @click.command()
    def table() -> None:
        print_table(("A", "B", "C"), rows)

    lines = CliRunner().invoke(table).output.splitlines()
    assert [tuple(line.split()) for line in lines[1:]] == rows


HEADER = ("PID", "STATE", "REASON")
ROWS = [(7, "managed", "the plan is live and fits"), (4242, "", "it exited")]


def test_a_wide_table_is_wrapped(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "31")
    print_table(HEADER, ROWS)
    assert capsys.readouterr().out == (
        "PID   STATE    REASON\n"
        "7     managed  the plan is live\n"
        "               and fits\n"
        "4242           it exited\n"
    )


def test_a_table_that_cannot_be_wrapped_is_printed_by_row(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "18")
    print_table(HEADER, ROWS)
    assert capsys.readouterr().out == (
        "PID     7\n"
        "STATE   managed\n"
        "REASON  the plan\n"
        "        is live\n"
        "        and fits\n"
        "\n"
        "PID     4242\n"
        "STATE\n"
        "REASON  it exited\n"
    )


@given(st.lists(st.tuples(WORDS, WORDS, WORDS), max_size=3), st.integers(20, 80))
def test_no_line_is_wider_than_the_terminal(rows: list[tuple[str, str, str]], width: int) -> None:
    @click.command()
    def table() -> None:
        print_table(("A", "B", "C"), [(a, b, f"{a} {b} {c * 9}") for a, b, c in rows])

    output = CliRunner(env={"COLUMNS": str(width)}).invoke(table).output
    assert all(len(line) <= width for line in output.splitlines())


def test_json_names_its_schema() -> None:
    @click.command()
    @json_option
    def values(as_json: bool) -> None:
        print_json({"as_json": as_json})

    for options, wanted in (([], False), (["--json"], True)):
        output = CliRunner().invoke(values, options).output
        assert json.loads(output) == {"schema": JSON_SCHEMA, "as_json": wanted}


def test_a_daemon_is_asked_by_each_way(server: Path) -> None:
    daemon = Daemon(server)
    assert daemon.ask("echo", pid=7) == [os.getuid(), {"pid": 7}]
    assert daemon.ask_long("echo") == [os.getuid(), {}]
    answer, fd = daemon.ask_file("file", pid=7)
    with os.fdopen(fd) as file:
        assert (answer, file.read()) == ({"pid": 7}, "hello")
    with pytest.raises(SentinelError, match="not now"):
        daemon.ask("refuse")
