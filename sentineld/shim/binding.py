# SPDX-License-Identifier: Apache-2.0
"""The memory nodes to which this process is bound, for example by numactl --membind."""

from __future__ import annotations

import ctypes
import platform

_GET_MEMPOLICY_NUMBERS = {"x86_64": 239, "aarch64": 236}
_MPOL_BIND = 2
_MODE_MASK = 0x1FFF  # the higher bits are MPOL_F_* flags (linux/mempolicy.h)
_NODES_MAX = 1024  # CONFIG_NODES_SHIFT is at most 10
_WORD_BITS = 8 * ctypes.sizeof(ctypes.c_ulong)


def bound_nodes() -> list[int]:
    """The nodes of the calling thread's memory policy (get_mempolicy(2)) if its mode is MPOL_BIND.

    Empty if the policy has another mode, or if the kernel does not report the policy.
    """
    number = _GET_MEMPOLICY_NUMBERS.get(platform.machine())
    if number is None:
        return []
    mode = ctypes.c_int(0)
    mask = (ctypes.c_ulong * (_NODES_MAX // _WORD_BITS + 1))()
    failed = ctypes.CDLL(None).syscall(
        ctypes.c_long(number),
        ctypes.byref(mode),
        mask,
        ctypes.c_ulong(len(mask) * _WORD_BITS),
        None,
        ctypes.c_ulong(0),
    )
    if failed or mode.value & _MODE_MASK != _MPOL_BIND:
        return []
    return [node for node in range(_NODES_MAX) if mask[node // _WORD_BITS] >> node % _WORD_BITS & 1]
