# SPDX-License-Identifier: Apache-2.0
"""A real control socket that gives prepared answers, and sentinelctl connected to this socket."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from sentineld.base.errors import SentinelError
from sentineld.cli.main import sentinelctl
from sentineld.control.frames import Message
from sentineld.control.server import Caller, Verb
from tests.unit.control.controlled import serving

Answer = Callable[[Message], Any]


class Ctl:
    """Runs sentinelctl on a server's socket. asked: the verbs and arguments of all requests."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.asked: list[tuple[str, Message]] = []

    def run(self, *arguments: str) -> Result:
        command = ["--socket", str(self.socket), *arguments]
        return CliRunner().invoke(sentinelctl, command)

    def output(self, *arguments: str) -> str:
        result = self.run(*arguments)
        assert result.exit_code == 0, result.output
        assert result.exception is None
        return result.output

    def refused(self, *arguments: str) -> SentinelError:
        error = self.run(*arguments).exception
        assert isinstance(error, SentinelError), error
        return error


@contextmanager
def answering(folder: Path, **answers: Answer) -> Iterator[Ctl]:
    """Run a control server in the daemon's place. answers: for each verb, the function that
    computes its answer."""
    ctl = Ctl(folder / "control.sock")

    def verb(name: str, answer: Answer) -> Verb:
        def serve(caller: Caller, arguments: Message) -> Any:
            ctl.asked.append((name, arguments))
            return answer(arguments)

        return serve

    with serving(ctl.socket, {name: verb(name, answer) for name, answer in answers.items()}):
        yield ctl
