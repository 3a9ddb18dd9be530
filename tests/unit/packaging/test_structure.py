# SPDX-License-Identifier: Apache-2.0
"""The structure that docs/architecture.md describes.

Imports between packages go in one direction only. Some packages only compute: they use no clock,
thread, process or kernel interface.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

ORDER = (
    "base",
    "model",
    "config",
    "entry",
    "control",
    "shim",
    "host",
    "observe",
    "profile",
    "plan",
    "report",
    "simulate",
    "policies",
    "advise",
    "planner",
    "migrate",
    "machine",
    "session",
    "heat",
    "service",
    "doctor",
    "top",
    "cli",
    "daemon",
)
"""Packages and modules of sentineld/, lowest first. Each imports only those listed before it."""

SESSION_ORDER = (
    "lifecycle",
    "intake",
    "live",
    "state",
    "work",
    "plans",
    "requests",
    "welcome",
    "goals",
    "attachment",
    "replacing",
    "driver",
    "resuming",
    "turns",
    "session",
)
"""The modules and packages of sentineld/session/, lowest first."""

PURE = ("model", "profile", "plan", "policies", "simulate")
"""Packages that only compute: the same arguments give the same result on every machine."""

IMPURE_MODULES = {
    "asyncio",
    "ctypes",
    "fcntl",
    "mmap",
    "multiprocessing",
    "select",
    "signal",
    "socket",
    "subprocess",
    "threading",
    "time",
}
"""Clocks, sockets, threads, processes and kernel interfaces."""

TRAINING_SIDE = {"base", "model", "shim"}
"""The packages of sentineld that a training process loads."""


def modules() -> dict[str, Path]:
    """Every module of sentineld by its dotted name without the leading `sentineld.`."""
    found = {}
    for path in sorted((ROOT / "sentineld").rglob("*.py")):
        parts = path.relative_to(ROOT / "sentineld").with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        found[".".join(parts)] = path
    return found


MODULES = modules()


def imports(path: Path) -> Iterator[str]:
    """The dotted names that a file imports anywhere, inside functions too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name if name.removeprefix("sentineld.") in MODULES else node.module


def own_imports(module: str) -> set[str]:
    """The modules of sentineld that a module imports."""
    names = (name for name in imports(MODULES[module]) if name.startswith("sentineld."))
    return {name.removeprefix("sentineld.") for name in names} - {module}


def top(module: str) -> str:
    return module.split(".")[0]


def test_every_package_has_its_place_in_the_order() -> None:
    found = {top(module) for module in MODULES if module}
    assert found == set(ORDER)
    assert len(found) <= 26


@pytest.mark.parametrize("package", ORDER)
def test_a_package_imports_only_packages_below_it(package: str) -> None:
    upward = [
        f"{module} -> {imported}"
        for module in MODULES
        if top(module) == package
        for imported in own_imports(module)
        if ORDER.index(top(imported)) > ORDER.index(package)
    ]
    assert not upward


def test_session_imports_run_in_one_direction() -> None:
    def place(module: str) -> int:
        return SESSION_ORDER.index(module.split(".")[1])

    inside = [module for module in MODULES if module.startswith("session.")]
    upward = [
        f"{module} -> {imported}"
        for module in inside
        for imported in own_imports(module)
        if imported.startswith("session.") and place(imported) > place(module)
    ]
    assert not upward


def test_no_modules_import_each_other_in_a_cycle() -> None:
    graph = {module: own_imports(module) & MODULES.keys() for module in MODULES}
    TopologicalSorter(graph).prepare()  # raises CycleError


@pytest.mark.parametrize("package", PURE)
def test_a_pure_package_uses_no_clock_socket_process_or_kernel_interface(package: str) -> None:
    impure = [
        f"{module}: {name}"
        for module, path in MODULES.items()
        if top(module) == package
        for name in imports(path)
        if name.split(".")[0] in IMPURE_MODULES
    ]
    assert not impure


def test_a_training_process_loads_only_the_shim_and_what_it_shares_with_the_daemon() -> None:
    shim = [own_imports(module) for module in MODULES if top(module) == "shim"]
    assert {top(module) for module in chain.from_iterable(shim)} <= TRAINING_SIDE


SHIM = ROOT / "sentineld/shim/native"


def calls_between_files(folder: Path) -> dict[str, set[str]]:
    """For each C file of a folder, the other files whose functions it calls."""
    comment = re.compile(r"/\*.*?\*/", re.S)
    sources = {path.name: comment.sub("", path.read_text()) for path in folder.glob("*.c")}
    definition = re.compile(r"^(?!static)\w[\w *]*?\b(\w+)\([^;{}]*\)\s*\{", re.M)
    home = {name: file for file, text in sources.items() for name in definition.findall(text)}
    return {
        file: {home[name] for name in re.findall(r"\b(\w+)\(", text) if name in home} - {file}
        for file, text in sources.items()
    }


@pytest.mark.parametrize(
    ("folder", "file", "called"),
    [
        (ROOT / "kmod", "epoch.c", {"walk.c", "note.c"}),
        (SHIM, "boundary.c", {"paging.c", "ring.c"}),
        (SHIM / "pager", "victims.c", {"evict.c", "frames.c"}),
    ],
    ids=["kmod", "shim", "pager"],
)
def test_c_files_do_not_call_each_other_in_a_cycle(
    folder: Path, file: str, called: set[str]
) -> None:
    graph = calls_between_files(folder)
    assert graph[file] >= called
    TopologicalSorter(graph).prepare()  # raises CycleError


def test_the_pagers_files_are_listed_in_the_order_of_their_calls() -> None:
    """pages.h says that each file calls only functions of files listed above it."""
    listed = re.findall(r"^ \*   (\w+\.c) ", (SHIM / "pager/pages.h").read_text(), re.MULTILINE)
    graph = calls_between_files(SHIM / "pager")
    assert len(listed) >= 17
    for place, file in enumerate(listed):
        assert not graph[file] & set(listed[place:]), file


def test_the_architecture_page_lists_the_packages_in_their_order() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    table = page.partition("| package |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| `(\w+)(?:/|\.py)` \|", table, re.MULTILINE)
    assert tuple(rows) == ORDER
