# SPDX-License-Identifier: Apache-2.0
"""Compiles some of the shim's C files with harness.c into a library that exports all functions."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

HERE = Path(__file__).parent
NATIVE = HERE.parents[2] / "sentineld" / "shim" / "native"
COMPILER = os.environ.get("CC", "cc")
PARTS = (
    "heap layout arena emulate residency flight delay paged_memory paging paging_file schedule"
).split()
FLAGS = "-std=gnu11 -g -Wall -Wextra -Werror -fPIC -shared -pthread".split()


def compile_harness(library: Path, optimization: str) -> None:
    """Compile and link the library. optimization: the compiler's flag."""
    pager = sorted((NATIVE / "pager").glob("*.c"))
    sources = [*(NATIVE / f"{part}.c" for part in PARTS), *pager, HERE / "harness.c"]
    command = [COMPILER, *FLAGS, optimization, "-I", str(NATIVE), "-o", str(library)]
    subprocess.run([*command, *map(str, sources)], check=True)
