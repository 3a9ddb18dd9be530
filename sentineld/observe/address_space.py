# SPDX-License-Identifier: Apache-2.0
"""Whether two processes use the same address space, as after vfork() or clone(CLONE_VM)."""

from __future__ import annotations

import ctypes
import platform

_KCMP_VM = 1  # of linux/kcmp.h
_NUMBERS = {"x86_64": 312, "aarch64": 272}  # of kcmp(2)
_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def same_address_space(pid: int, other_pid: int) -> bool:
    """Whether the processes share one address space. False if one of them has exited, or if kcmp(2)
    is missing or not permitted."""
    number = _NUMBERS.get(platform.machine())
    if number is None:
        return False
    arguments = (number, pid, other_pid, _KCMP_VM, 0, 0)
    return int(_libc.syscall(*map(ctypes.c_long, arguments))) == 0
