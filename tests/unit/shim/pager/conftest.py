# SPDX-License-Identifier: Apache-2.0
"""Compiles the pager into a library for the tests, and starts it."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.unit.shim.harness import COMPILER, NATIVE
from tests.unit.shim.paged import Paged, backing_file, load, pager_problem

PAGES = 1200
BUDGET = 400
FILE_PAGES = 3 * PAGES
BLOCK_PAGES = 512  # homes.h
FLAGS = "-std=gnu11 -O2 -g -Wall -Wextra -Werror -fPIC -pthread".split()


@pytest.fixture(scope="session")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the pager's object files."""
    folder = tmp_path_factory.mktemp("objects")
    sources = map(str, (NATIVE / "pager").glob("*.c"))
    subprocess.run([COMPILER, *FLAGS, "-c", *sources], cwd=folder, check=True)
    return folder


Link = Callable[..., ctypes.CDLL]
"""The type of the fixture `link`."""


@pytest.fixture(scope="session")
def link(objects: Path, tmp_path_factory: pytest.TempPathFactory) -> Link:
    def link_one(
        added: str | None = None,
        replaced: str | None = "ioctl",
        defined: tuple[str, ...] | None = None,
    ) -> ctypes.CDLL:
        """Link the pager and load it. added: a C file in this folder that is linked with the pager.
        replaced: the functions that the added file replaces, separated by spaces, or None. defined:
        one of the pager's C files, which is compiled again, and macros for it, as NAME=VALUE."""
        path = tmp_path_factory.mktemp("pager") / "pager.so"
        files, flags = set(objects.glob("*.o")), []
        if defined is not None:
            source, *macros = defined
            files -= {objects / f"{source}.o"}
            files |= {NATIVE / "pager" / f"{source}.c"}
            flags += [f"-D{macro}" for macro in macros]
        if added is not None:
            files |= {Path(__file__).with_name(added)}
            flags += ["-I", str(NATIVE / "pager")]
            flags += [f"-Wl,--wrap={function}" for function in (replaced or "").split()]
        command = [COMPILER, *FLAGS, "-shared", *flags, "-o", str(path), *map(str, sorted(files))]
        subprocess.run(command, check=True)
        return load(path)

    return link_one


@pytest.fixture(scope="session", params=["counted", "uncounted"])
def library(request: pytest.FixtureRequest, link: Link) -> ctypes.CDLL:
    """The pager. "uncounted": its ioctl() has the defect of Linux 6.18 that frames.c works
    around."""
    return link("uncounted.c" if request.param == "uncounted" else None)


@pytest.fixture(scope="session")
def held(link: Link) -> ctypes.CDLL:
    """The pager, whose reads and evictions tests can hold; see holding.py."""
    return link("held.c", "preadv checksum")


@pytest.fixture(scope="session")
def library_path(library: ctypes.CDLL) -> Path:
    return Path(library._name)


@pytest.fixture(autouse=True)
def _pages_can_be_moved() -> None:
    if (problem := pager_problem()) is not None:
        pytest.skip(problem)


@pytest.fixture
def start(library: ctypes.CDLL, tmp_path: Path) -> Iterator[Callable[..., Paged]]:
    started: list[tuple[Paged, int]] = []

    def start_one(pages: int = PAGES, budget: int = BUDGET, file_pages: int = FILE_PAGES) -> Paged:
        file = backing_file(tmp_path, file_pages)
        started.append((Paged(library, file, file_pages, pages, budget), file))
        return started[-1][0]

    yield start_one
    for paged, file in started:
        paged.stop()
        os.close(file)
