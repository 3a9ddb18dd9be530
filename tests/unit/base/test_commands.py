# SPDX-License-Identifier: Apache-2.0
"""Commands run on the serving thread; results and errors return to the caller."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentineld.base import commands as module
from sentineld.base.commands import Backlog, Commands
from tests.unit.waiting import PATIENCE_S


def serve(commands: Commands, count: int) -> threading.Thread:
    def run() -> None:
        for _ in range(count):
            command = commands.get(PATIENCE_S)
            assert command is not None
            command()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_results_and_errors_return_to_the_caller() -> None:
    commands = Commands()
    thread = serve(commands, 3)
    assert commands.call(threading.get_ident, lambda: False) == thread.ident
    assert commands.call(lambda: [1], lambda: False) == [1]
    with pytest.raises(KeyError, match="no"):
        commands.call(lambda: {}["no"], lambda: False)
    thread.join()


def test_a_call_to_a_finished_thread_fails_instead_of_blocking(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "ALIVE_CHECK_S", 0.01)
    with pytest.raises(EOFError):
        Commands().call(lambda: 1, lambda: True)


def test_get_returns_none_on_timeout() -> None:
    assert Commands().get(0.0) is None


def test_a_full_backlog_stops_its_reader_until_half_is_handled() -> None:
    woken: list[int] = []
    backlog = Backlog(4, 1000, lambda: woken.append(1))
    assert [backlog.add(1) for _ in range(5)] == [True, True, True, False, False]
    backlog.remove(1)
    backlog.remove(1)
    assert not backlog.add(1)  # more than half of the backlog is unhandled
    backlog.remove(1)
    assert woken == []
    backlog.remove(1)
    assert woken == [1]
    assert backlog.add(1)


def test_a_backlog_is_also_limited_in_bytes() -> None:
    woken: list[int] = []
    backlog = Backlog(100, 1000, lambda: woken.append(1))
    assert backlog.add(600)
    assert not backlog.add(600)
    backlog.remove(600)
    assert woken == []
    backlog.remove(600)
    assert woken == [1]


@given(st.lists(st.integers(0, 500), max_size=60))
def test_a_reader_that_stops_is_always_woken(sizes: list[int]) -> None:
    waiting: list[int] = []
    backlog = Backlog(5, 1000, waiting.clear)
    waiting += [size for size in sizes if not backlog.add(size)]
    for size in sizes:
        backlog.remove(size)
    assert waiting == []
