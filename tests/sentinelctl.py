# SPDX-License-Identifier: Apache-2.0
"""sentinelctl of the working tree, and the form of its errors."""

from __future__ import annotations

import subprocess
import sys

from sentineld.base.errors import EXIT_STATUS

SENTINELCTL = (sys.executable, "-c", "from sentineld.cli import main; main()")
"""The command, to be followed by its arguments."""


def refused(done: subprocess.CompletedProcess[str], code: str) -> str:
    """Check for a one-line error with the code's exit status; return the line."""
    assert done.returncode == EXIT_STATUS[code], done.stderr
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("error: ")
    return lines[0]
