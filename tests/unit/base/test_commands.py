# SPDX-License-Identifier: Apache-2.0
"""Commands run in their thread; results and errors return to the caller."""

from __future__ import annotations

import threading

import pytest

from sentineld.base import commands as module
from sentineld.base.commands import Commands


def serve(commands: Commands, count: int) -> threading.Thread:
    def run() -> None:
        for _ in range(count):
            command = commands.get(30)
            assert command is not None
            command()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_results_and_errors_come_back() -> None:
    commands = Commands()
    thread = serve(commands, 3)
    assert commands.call(threading.get_ident, lambda: False) == thread.ident
    assert commands.call(lambda: [1], lambda: False) == [1]
    with pytest.raises(KeyError, match="no"):
        commands.call(lambda: {}["no"], lambda: False)
    thread.join()


def test_a_thread_that_has_ended_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ALIVE_CHECK_S", 0.01)
    with pytest.raises(EOFError):
        Commands().call(lambda: 1, lambda: True)


def test_no_command_in_time_is_none() -> None:
    assert Commands().get(0.0) is None
