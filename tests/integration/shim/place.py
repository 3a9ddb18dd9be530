# SPDX-License-Identifier: Apache-2.0
"""Where the shim's tests run trainings: in this Python with its torch, or in another Python."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path


class Place:
    """The Python that runs the tests.

    `name` selects the losses with which those of a training are compared (Training.plain_losses()).
    A subclass for another Python needs another `name`, because a training may have other losses
    there.
    """

    name = "here"
    python = sys.executable
    lacking: Mapping[str, str] = (
        {} if find_spec("transformers") else {"trainer": "transformers is not installed"}
    )
    """For each kind of training that cannot run in this place: the reason."""

    def command(self, arguments: Sequence[str], environment: Mapping[str, str]) -> list[str]:
        """Command that runs `python ARGUMENTS` with variables added to its environment.

        The command execs Python, so that signals to the started process reach Python.
        """
        added = [f"{name}={value}" for name, value in environment.items()]
        return ["env", *added, self.python, *arguments]

    def ranks(self, count: int, script: Path, *arguments: str) -> list[str]:
        """Python's arguments that start a script as a training of `count` ranks."""
        options = ["--nproc-per-node", str(count), "--standalone", "--no-python"]
        return ["-m", "torch.distributed.run", *options, self.python, self.path(script), *arguments]

    def path(self, path: Path) -> str:
        """The file's path in this place."""
        return str(path)


HERE = Place()


class Within(Place):
    """Like Place, but a wrapper command, such as setpriv or env, starts Python by exec.

    The subclass keeps the name of Place: the name selects the losses for comparison, and a wrapper
    does not change the losses of a training without the shim.
    """

    def __init__(self, *wrapper: str) -> None:
        self._wrapper = wrapper

    def command(self, arguments: Sequence[str], environment: Mapping[str, str]) -> list[str]:
        return [*self._wrapper, *super().command(arguments, environment)]
