# SPDX-License-Identifier: Apache-2.0
"""Sizes, offsets and values of C headers, printed by a compiled program."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.unit.shim.harness import COMPILER, NATIVE

KMOD = NATIVE.parents[2] / "kmod"


def c_values(expressions: list[str], includes: list[str], tmp_path: Path) -> dict[str, int]:
    """The value of each expression. includes: file names in quotes or angle brackets."""
    lines = [f'printf("%llu\\n", (unsigned long long)({e}));' for e in expressions]
    heads = ["<stddef.h>", "<stdio.h>", *includes]
    program = "".join(f"#include {head}\n" for head in heads)
    program += "int main(void)\n{\n" + "\n".join(lines) + "\nreturn 0;\n}\n"
    source = tmp_path / "numbers.c"
    source.write_text(program)
    directories = [NATIVE, KMOD, tmp_path]
    flags = ["-std=gnu11", "-Wall", "-Werror", *(f"-I{path}" for path in directories)]
    subprocess.run([COMPILER, *flags, "-o", str(tmp_path / "numbers"), str(source)], check=True)
    output = subprocess.run([tmp_path / "numbers"], capture_output=True, text=True, check=True)
    return dict(zip(expressions, map(int, output.stdout.split()), strict=True))
