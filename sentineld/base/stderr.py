# SPDX-License-Identifier: Apache-2.0
"""Writes lines to standard error, even after its reader has gone."""

from __future__ import annotations

import os
import sys


def say(line: str) -> None:
    """Write a line to standard error. If that fails, for example because the terminal is gone or
    the disk is full, discard this line and all later ones."""
    try:
        print(line, file=sys.stderr, flush=True)
    except OSError:
        # Python flushes standard error again at exit. A failure would change the exit status.
        discard_output(sys.stderr.fileno())


def discard_output(descriptor: int) -> None:
    """Discard everything that this process writes to a descriptor from now on."""
    null_fd = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null_fd, descriptor)
    os.close(null_fd)
