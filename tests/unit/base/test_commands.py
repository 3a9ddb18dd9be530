# SPDX-License-Identifier: Apache-2.0
"""Commands run on the serving thread; results and errors return to the caller."""

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
