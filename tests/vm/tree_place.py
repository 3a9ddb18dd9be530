# SPDX-License-Identifier: Apache-2.0
"""Debian 13's own Python and torch, run natively in the image's root tree; no guest boots.

The test is the daemon's side: it stays outside and meets the training at a
socket in a folder that both see.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.integration.shim.place import Place

from .host import REPOSITORY
from .rootfs import TREE, build_shim, root_command

FOLDER = "/mnt/test"
LIBRARIES = "/mnt/shim"
RANKS = REPOSITORY / "tests/integration/shim/ranks.py"


class TreePlace(Place):
    """The tree's Python; folder: what the test and its trainings share."""

    name = "Debian 13"
    python = "/usr/bin/python3"
    lacking: Mapping[str, str] = {
        "compile": "inductor needs a C++ compiler and Python's headers, the image has neither",
        "trainer": "Debian 13 has no transformers",
    }

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._library = build_shim()

    def command(self, arguments: Sequence[str], environment: Mapping[str, str]) -> list[str]:
        added = {
            "PYTHONPATH": TREE,
            "SENTINELD_SHIM_LIBRARY": f"{LIBRARIES}/{self._library.name}",
            **environment,
        }
        assignments = [f"{name}={value}" for name, value in added.items()]
        line = shlex.join(["exec", "env", *assignments, self.python, *arguments])
        return root_command(line, {self._folder: FOLDER}, {self._library.parent: LIBRARIES})

    def ranks(self, count: int, script: Path, *arguments: str) -> list[str]:
        # Debian's torch is built without libuv, which its torchrun asks for all the same.
        return [self.path(RANKS), str(count), self.path(script), *arguments]

    def path(self, path: Path) -> str:
        for here, there in ((self._folder, FOLDER), (REPOSITORY, TREE)):
            if path.is_relative_to(here):
                return f"{there}/{path.relative_to(here)}"
        raise ValueError(f"{path} is not seen in the tree")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """In front of the fixture of that name which the tests bring along."""
    return TreePlace(tmp_path)
