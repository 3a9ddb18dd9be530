# SPDX-License-Identifier: Apache-2.0
"""Where the shim's tests start their trainings: with our own Python and torch, or with others."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path


class Place:
    """Our own Python. Another place is told from this one by its name."""

    name = "here"
    python = sys.executable
    lacking: Mapping[str, str] = (
        {} if find_spec("transformers") else {"trainer": "transformers is not installed"}
    )
    """Why a kind of training cannot run there, by the kind."""

    def command(self, arguments: Sequence[str], environment: Mapping[str, str]) -> list[str]:
        """What starts `python ARGUMENTS` with ENVIRONMENT added to its own.

        The process that is started becomes that Python, so that it can be sent signals.
        """
        added = [f"{name}={value}" for name, value in environment.items()]
        return ["env", *added, self.python, *arguments]

    def ranks(self, count: int, script: Path, *arguments: str) -> list[str]:
        """Python's arguments to run a script in so many ranks of one training."""
        options = ["--nproc-per-node", str(count), "--standalone", "--no-python"]
        return ["-m", "torch.distributed.run", *options, self.python, self.path(script), *arguments]

    def path(self, path: Path) -> str:
        """What our file is called there."""
        return str(path)


HERE = Place()


class Within(Place):
    """Our own Python, started by a command that changes what it runs in and becomes it."""

    def __init__(self, *wrapper: str) -> None:
        self.name = " ".join(wrapper) or Place.name
        self._wrapper = wrapper

    def command(self, arguments: Sequence[str], environment: Mapping[str, str]) -> list[str]:
        return [*self._wrapper, *super().command(arguments, environment)]
