# SPDX-License-Identifier: Apache-2.0
"""HiGHS without what it says on standard output, which is another program's to read."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_solver() -> Iterator[None]:
    """Some releases print from within C++, whatever they are asked: planning processes answer on
    standard output, and so does `sentinelctl --json`."""
    flush = ctypes.CDLL(None).fflush
    sys.stdout.flush()
    flush(None)
    kept = os.dup(1)
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.close(nowhere)
        yield
    finally:
        flush(None)
        os.dup2(kept, 1)
        os.close(kept)
