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


def compile_pager(
    path: Path, added: str | None = None, replaced: str | None = "ioctl", defined: str | None = None
) -> None:
    """Compile the pager. added: a C file in this folder that is linked with the pager. replaced:
    the function that the added file replaces, or None. defined: a macro's NAME=VALUE."""
    sources = sorted(map(str, (NATIVE / "pager").glob("*.c")))
    flags = "-std=gnu11 -O2 -g -Wall -Wextra -Werror -fPIC -shared -pthread".split()
    if defined is not None:
        flags.append(f"-D{defined}")
    if added is not None:
        sources.append(str(Path(__file__).with_name(added)))
        flags += ["-I", str(NATIVE / "pager")]
        flags += [f"-Wl,--wrap={replaced}"] if replaced is not None else []
    subprocess.run([COMPILER, *flags, "-o", str(path), *sources], check=True)


@pytest.fixture(scope="session", params=["counted", "uncounted"])
def library_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled pager. "uncounted": its ioctl() has the defect of Linux 6.18 that frames.c works
    around."""
    path = tmp_path_factory.mktemp("pager") / "pager.so"
    compile_pager(path, "uncounted.c" if request.param == "uncounted" else None)
    return path


@pytest.fixture(scope="session")
def library(library_path: Path) -> ctypes.CDLL:
    return load(library_path)


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
