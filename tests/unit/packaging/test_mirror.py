# SPDX-License-Identifier: Apache-2.0
"""tests/unit mirrors sentineld: the tests of sentineld/X/y.py are in tests/unit/X/test_y.py."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[3]
PACKAGE, TESTS = ROOT / "sentineld", ROOT / "tests" / "unit"

DATA_ONLY = {
    "heat/figures": "a dataclass",
    "base/npz": "a tuple of exceptions; test_store.py and test_trace_file.py read damaged files",
    "model/attach_rule": "a dataclass",
    "model/arrays": "aliases of numpy's types",
    "model/plan": "dtypes and dataclasses; test_protocol.py compares the layouts with the shim's",
    "model/records": "dtypes; test_protocol.py and test_uapi.py compare them with C",
    "model/tiers": "dataclasses",
    "policies/lp/places": "a dataclass",
    "service/snapshot": "dataclasses",
}
"""Modules without anything to test, each with its contents."""

TESTED_ELSEWHERE = {
    "heat/session": "tests/integration/test_temperature.py",
    "heat/table": "tests/integration/test_temperature.py",
    "observe/bpfmap": "tests/vm/test_ebpf.py",
    "observe/pagemap_ioctl": "tests/unit/observe/test_pagemap_scan.py",
    "service/collect": "tests/vm/test_sessions.py",
    "service/views": "tests/integration/test_emulated.py",
    "session/live/sending": "tests/integration/test_emulated.py",
    "session/live/totals": "tests/vm/test_sessions.py",
    "session/plans/entering": "tests/integration/test_emulated.py",
    "session/work/trace_facts": "tests/integration/test_record.py",
    "shim/__main__": "tests/integration/shim/test_start.py",
}
"""Modules that need a whole session, a training or a kernel, and the file that tests them."""

TESTS_OF_NO_MODULE = {
    "cli/test_wrong_values.py": "the options of all verbs",
    "migrate/test_slow_mover.py": "the mover with the plans of several policies",
    "policies/test_paged.py": "all policies on paged tiers, compared with the bound",
    "policies/test_random_profiles.py": "all policies, with random profiles",
    "service/test_heat_sessions.py": "verbs and stuck sessions without the shim",
    "service/test_setuid_programs.py": "sessions of processes that execute a setuid program",
    "simulate/test_variants.py": "variants of the timing model: simulator and bound",
    "session/work/test_profiled_times.py": "profiling with fast_times.py, on nodes and emulated",
    "shim/test_access_steps.py": "access steps of a whole training; its script is the daemon",
    "shim/test_agreement.py": "two C files, compared with the simulator",
    "shim/test_bits.py": "the bit maps of native/pager/bits.h",
    "shim/test_former_layouts.py": "arena.c and control.c: dead pages of a former layout",
}
"""Test files that lie in mirrored folders but test no single module, each with what it tests."""


def modules() -> dict[str, Path]:
    """Every module by its path in the package, without its suffix."""
    return {
        path.relative_to(PACKAGE).with_suffix("").as_posix(): path
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.name != "__init__.py"
    }


def file_of_tests(module: str) -> Path:
    path = TESTS / f"{module}.py"
    return path.with_name(f"test_{path.name}")


def native_files(folder: Path) -> set[str]:
    """Names of the C files of a package, without suffixes."""
    return {path.stem for path in (PACKAGE / folder).rglob("*.c")}


def mirrored_test_files() -> list[str]:
    """The test files in those folders of tests/unit that are named after a package of sentineld."""
    return [
        path.relative_to(TESTS).as_posix()
        for path in sorted(TESTS.rglob("test_*.py"))
        if (PACKAGE / path.parent.relative_to(TESTS)).is_dir()
    ]


def has_module(name: Path) -> bool:
    """Whether a test file is named after a module or a C file of its package."""
    module = name.with_name(name.name.removeprefix("test_"))
    return (PACKAGE / module).exists() or module.stem in native_files(name.parent)


def has_code(path: Path) -> bool:
    """Whether any function of a module does something: a Protocol's functions have only
    docstrings."""
    functions = [
        node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return any(
        not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))
        for function in functions
        for statement in function.body
    )


def test_every_module_has_tests_of_its_name_or_an_exemption() -> None:
    exempt = {*DATA_ONLY, *TESTED_ELSEWHERE}
    missing = [
        file_of_tests(module).relative_to(ROOT).as_posix()
        for module in modules()
        if module not in exempt and not file_of_tests(module).exists()
    ]
    assert missing == []


def test_every_test_file_has_a_module_of_its_name() -> None:
    names = set(mirrored_test_files()) - set(TESTS_OF_NO_MODULE)
    unmatched = [name for name in sorted(names) if not has_module(Path(name))]
    assert unmatched == []


def test_exemptions_are_needed() -> None:
    found = modules()
    assert set(DATA_ONLY) | set(TESTED_ELSEWHERE) <= set(found)
    for module in (*DATA_ONLY, *TESTED_ELSEWHERE):
        assert not file_of_tests(module).exists(), module
    assert not set(DATA_ONLY) & set(TESTED_ELSEWHERE)
    assert set(TESTS_OF_NO_MODULE) <= set(mirrored_test_files())


def test_modules_of_data_have_no_code() -> None:
    found = modules()
    assert [module for module in DATA_ONLY if has_code(found[module])] == []


def test_tests_elsewhere_exist() -> None:
    for path in TESTED_ELSEWHERE.values():
        assert (ROOT / path).exists(), path
