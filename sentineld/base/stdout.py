# SPDX-License-Identifier: Apache-2.0
"""Keeps standard output clean while a C++ library runs."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from sentineld.base.stderr import discard_output


@contextmanager
def silent_stdout() -> Iterator[None]:
    """Redirect file descriptor 1 to /dev/null while the with block runs.

    Some releases of HiGHS print from C++ even if their options forbid it. Such output would mix
    with the answers that planning processes and `sentinelctl --json` write to standard output.
    """
    flush = ctypes.CDLL(None).fflush
    sys.stdout.flush()
    flush(None)
    saved_fd = os.dup(1)
    try:
        discard_output(1)
        yield
    finally:
        flush(None)
        os.dup2(saved_fd, 1)
        os.close(saved_fd)
