# SPDX-License-Identifier: Apache-2.0
"""Wheels of the package: one with the compiled library, and one built without a compiler."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from sentineld.shim.native import SHIM_VERSION

ROOT = Path(__file__).parents[3]
LIBRARY = "sentineld/shim/libsentinelshim.so"
SOURCE = "sentineld/shim/native/heap.c"

pytestmark = pytest.mark.long


def build(tmp_path: Path, compiler: str) -> zipfile.ZipFile:
    """The wheel that pip builds from a copy of the source tree."""
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in ("README.md", "LICENSE", "pyproject.toml"):
        shutil.copy(ROOT / name, tree)
    without = shutil.ignore_patterns("__pycache__", "*.so")
    for name in ("LICENSES", "sentineld"):
        shutil.copytree(ROOT / name, tree / name, ignore=without)
    command = (sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation")
    subprocess.run(
        [*command, f"--wheel-dir={tmp_path}", str(tree)],
        env={**os.environ, "CC": compiler},
        check=True,
        timeout=300,
    )
    (wheel,) = tmp_path.glob("*.whl")
    return zipfile.ZipFile(wheel)


def test_a_wheel_has_the_compiled_library_instead_of_its_sources(tmp_path: Path) -> None:
    with build(tmp_path, "cc") as wheel:
        assert "-py3-none-linux_" in str(wheel.filename)
        assert not [name for name in wheel.namelist() if name.endswith((".c", ".h"))]
        library = ctypes.CDLL(wheel.extract(LIBRARY, tmp_path))
    assert library.sentinel_version() == SHIM_VERSION


def test_a_wheel_built_without_a_compiler_has_the_sources(tmp_path: Path) -> None:
    with build(tmp_path, "false") as wheel:
        assert "-py3-none-any" in str(wheel.filename)
        assert SOURCE in wheel.namelist()
        assert LIBRARY not in wheel.namelist()
