# SPDX-License-Identifier: Apache-2.0
"""Runs trainings with Debian 13's Python and torch in the image's root tree; boots no guest.

The test acts as the daemon outside the tree; the training connects to the test's socket
in a folder that is bind-mounted into the tree.
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
    """Runs the root tree's Python. folder: shared by the test and its trainings."""

    name = "Debian 13"
    python = "/usr/bin/python3"
    lacking: Mapping[str, str] = {
        "compile": "inductor needs a C++ compiler and Python's headers, which the image lacks",
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
        # Debian's torch is built without libuv, which torchrun requires.
        return [self.path(RANKS), str(count), self.path(script), *arguments]

    def path(self, path: Path) -> str:
        for here, there in ((self._folder, FOLDER), (REPOSITORY, TREE)):
            if path.is_relative_to(here):
                return f"{there}/{path.relative_to(here)}"
        raise ValueError(f"{path} is not bound into the tree")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A fixture for modules that import tests: it replaces the imported tests' fixture `place`."""
    return TreePlace(tmp_path)
