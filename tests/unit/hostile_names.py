# SPDX-License-Identifier: Apache-2.0
"""Processes and files whose names contain characters that Python takes for the end of a line. The
kernel does not escape these characters in the files of /proc."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NAMES = ("a\rb", "\rVmSwap:", "a\vb", "a\x1cb", "a\N{LINE SEPARATOR}b")
"""Names of processes. The kernel cuts them to 15 bytes."""
FILES = ("a\ry", "x\rVmFlags: lo", "a\x1cb", "a\N{LINE SEPARATOR}b")
"""Names of files that processes execute, and so map."""


@contextmanager
def running(folder: Path, name: str) -> Iterator[int]:
    """A process that executes a file of this name, which is also the name of the process; yields
    the process ID."""
    program, pipe = folder / name, subprocess.PIPE
    shutil.copy("/bin/cat", program)
    with subprocess.Popen([program], bufsize=0, stdin=pipe, stdout=pipe) as process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            # Popen() returns before the kernel has mapped the program.
            process.stdin.write(b"x")
            assert process.stdout.read(1) == b"x"
            yield process.pid
        finally:
            process.kill()
