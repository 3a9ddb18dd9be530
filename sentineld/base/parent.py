# SPDX-License-Identifier: Apache-2.0
"""End a process together with its parent."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def die_with(parent_pid: int) -> bool:
    """Have the kernel kill this process when the thread that created this process ends.

    Returns False if the parent has already ended; in this case the kernel does not kill this
    process.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    return os.getppid() == parent_pid
